package targets_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestATeamTracesItsOwnPods has two teams with pods of one image. The probe is in the one file
// that all share.
func TestATeamTracesItsOwnPods(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	ours, others := r.Start("team-a", "web", "app", nil), r.Start("team-b", "web", "app", nil)
	a, stop := world.StartOn(w, r)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, p))
	world.HasLinks(w, a, p.UID, 1)
	sees := func(what string, want uint64) {
		t.Helper()
		if got := world.Counted(w, p.UID); got != want {
			t.Errorf("%s: counted %d, want %d", what, got, want)
		}
	}
	ours.Runs("app")
	for range 20 {
		others.Runs("app")
	}
	sees("one pod", world.Worked)

	second := r.Start("team-a", "web-2", "app", nil)
	world.Until(t, "the second pod", 10*time.Second, func() bool {
		before := world.Counted(w, p.UID)
		second.Runs("app")
		return world.Counted(w, p.UID) > before
	})
	before := world.Counted(w, p.UID)
	ours.Runs("app")
	second.Runs("app")
	sees("two pods with one file have one probe", before+2*world.Worked)
	world.HasLinks(w, a, p.UID, 1)

	// The probe was made through the files of the first one.
	ours.Ends()
	world.Until(t, "the first pod to go", 10*time.Second, func() bool {
		before = world.Counted(w, p.UID)
		ours.Runs("app")
		return world.Counted(w, p.UID) == before
	})
	world.HasLinks(w, a, p.UID, 1)
	second.Runs("app")
	sees("the second pod goes on", before+world.Worked)

	stop()
	a, _ = world.StartOn(w, r)
	world.HasLinks(w, a, p.UID, 1)
	second.Runs("app")
	others.Runs("app")
	sees("after a restart", before+2*world.Worked)

	second.Ends()
	world.HasLinks(w, a, p.UID, 0)
	second.Runs("app")
	others.Runs("app")
	sees("no pod is left", before+2*world.Worked)
}

// TestTwoTeamsReadTheArgumentsOfTheirProbes has a probe of USDT in a file that their pods share.
func TestTwoTeamsReadTheArgumentsOfTheirProbes(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	a, _ := world.StartOn(w, r)
	at := v1alpha1.Attachment{
		Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: "/declares", USDT: &v1alpha1.USDT{Provider: "skep", Name: "one"}}, Pods: &v1alpha1.Pods{},
	}
	type team struct {
		pod  *world.Pod
		uid  string
		runs uint64
	}
	teams := []team{{runs: 3}, {runs: 5}}
	var all []intent.Payload
	for i := range teams {
		namespace := fmt.Sprintf("team-%d", i)
		p := world.OfTeam(w, namespace, "uprobe_count", "on_probe", at)
		p.ObjectDigest = w.Object(world.WeakUSDT())
		teams[i].pod, teams[i].uid, all = r.Start(namespace, "web", "app", nil), p.UID, append(all, p)
	}
	world.Must(t, w.Accept(a, all...))
	for _, team := range teams {
		world.HasLinks(w, a, team.uid, 1)
	}
	for _, team := range teams {
		for range team.runs {
			team.pod.Runs("declares")
		}
	}
	for i, team := range teams {
		var got world.Seen
		if err := binary.Read(bytes.NewReader(sectionOf(w, team.uid, "%2ebss")), binary.NativeEndian, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(world.ArgumentsOfOne(team.runs), got); diff != "" {
			t.Errorf("team %d read (-want +got):\n%s", i, diff)
		}
	}
}

// sectionOf reads a data section of an application.
func sectionOf(w *world.World, uid, escaped string) []byte {
	w.T.Helper()
	pins, err := filepath.Glob(filepath.Join(w.BPFFS, uid, "*", "m-"+escaped))
	if err != nil || len(pins) != 1 {
		w.T.Fatalf("pins of %s of %s: %v, %v", escaped, uid, pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		w.T.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	body, err := m.LookupBytes(uint32(0))
	if err != nil {
		w.T.Fatal(err)
	}
	return body
}

// TestPodsAreChosen has an application of the cluster, and two of a namespace, choose pods.
func TestPodsAreChosen(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	front, back := map[string]string{"app": "front"}, map[string]string{"app": "back"}
	pods := []*world.Pod{r.Start("team-a", "front", "app", front), r.Start("team-a", "back", "app", back), r.Start("team-a", "front", "istio-proxy", front),
		r.Start("team-b", "front", "app", front)}
	o := w.Options()
	o.Containers = r.Source
	o.NamespaceLabels = func(name string) (map[string]string, bool, bool) {
		return map[string]string{"tier": name[len(name)-1:]}, true, true
	}
	a := w.StartWith(o)
	chosen := metav1.LabelSelector{MatchLabels: front}
	cases := []struct {
		namespace string
		pods      v1alpha1.Pods
		want      []bool
	}{
		{"team-a", v1alpha1.Pods{}, []bool{true, true, true, false}},
		{"team-a", v1alpha1.Pods{Selector: &chosen}, []bool{true, false, true, false}},
		{"team-a", v1alpha1.Pods{Selector: &chosen, Containers: []string{"istio-*"}}, []bool{false, false, true, false}},
		{"team-a", v1alpha1.Pods{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "b"}}}, []bool{true, true, true, false}},
		{"team-c", v1alpha1.Pods{}, []bool{false, false, false, false}},
		{"", v1alpha1.Pods{}, []bool{true, true, true, true}},
		{"", v1alpha1.Pods{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "b"}}}, []bool{false, false, false, true}},
		{
			"", v1alpha1.Pods{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "team-a"}}, Selector: &chosen},
			[]bool{true, false, true, false},
		},
	}
	var payloads []intent.Payload
	for i, c := range cases {
		p := world.OfTeam(w, c.namespace, "uprobe_count", "uprobe_count", world.InPods(c.pods))
		p.UID, p.Application.Name = fmt.Sprint("uid-", i), fmt.Sprint("app-", i)
		if c.namespace == "" {
			p.Application.Kind = v1alpha1.KindClusterBpfApplication
		}
		payloads = append(payloads, p)
	}
	world.Must(t, w.Accept(a, payloads...))
	for i, c := range cases {
		places := 0
		if slices.Contains(c.want, true) {
			places = 1
		}
		world.HasLinks(w, a, payloads[i].UID, places)
	}
	for i, c := range cases {
		for j, pod := range pods {
			before := world.Counted(w, payloads[i].UID)
			pod.Runs("app")
			if got := world.Counted(w, payloads[i].UID) - before; got != 0 && got != world.Worked || (got > 0) != c.want[j] {
				t.Errorf("%q chooses %+v: %d events of %s of pod %s/%s, want some: %v", c.namespace, c.pods, got, pod.Name, pod.Pod.Namespace, pod.Pod.Name, c.want[j])
			}
		}
	}
}

// TestWhatRunsStaysWhilePodsAreNotKnown has the runtime say nothing at an agent's start, as before its first answer, or nothing
// of a container alone.
func TestWhatRunsStaysWhilePodsAreNotKnown(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	for sentence, lacks := range map[string]func(*world.Pod) (back func()){
		"the runtime does not answer": func(p *world.Pod) (back func()) {
			left := p.R.All
			p.R.Tell(func() { p.R.All, p.R.Err = map[string]containers.Container{}, containers.ErrNotRead })
			return func() { p.R.Tell(func() { p.R.All, p.R.Err = left, nil }) }
		},
		"it does not answer for the container": func(p *world.Pod) (back func()) { return p.Unanswered(p.Pod) },
		"it does not answer for the pod":       func(p *world.Pod) (back func()) { return p.Unanswered() },
	} {
		t.Run(sentence, func(t *testing.T) {
			w, r := world.New(t), world.NewRuntime(t)
			ours := r.Start("team-a", "web", "app", nil)
			a, stop := world.StartOn(w, r)
			probe := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
			traced := world.OfTeam(w, "team-a", "tracepoint_count", "tracepoint_count", v1alpha1.Attachment{
				Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid", Pods: &v1alpha1.Pods{},
			})
			world.Must(t, w.Accept(a, probe, traced))
			world.HasLinks(w, a, probe.UID, 1)
			world.HasLinks(w, a, traced.UID, 1)
			stop()

			back := lacks(ours)
			a, _ = world.StartOn(w, r)
			settles(t, a)
			ours.Runs("app")
			if got := world.Counted(w, probe.UID); got != world.Worked {
				t.Errorf("counted %d while the pods are not known, want %d", got, world.Worked)
			}
			back()
			world.HasLinks(w, a, probe.UID, 1)
			world.HasLinks(w, a, traced.UID, 1)
			ours.Runs("app")
			if got := world.Counted(w, probe.UID); got != 2*world.Worked {
				t.Errorf("counted %d afterwards, want %d", got, 2*world.Worked)
			}
		})
	}
}

// TestALifeOfAContainerThatHasEndedDoesNotStay while the runtime never answers for another container of its pod: each life of a container would
// leave a probe, of which others have fewer places.
func TestALifeOfAContainerThatHasEndedDoesNotStay(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	r.Skipped = []containers.Skipped{{ID: "hangs", Pod: containers.Pod{Namespace: "team-a", Name: "web"}, Reason: containers.NoAnswer}}
	var lives []*world.Pod
	for range 3 {
		life := r.Start("team-a", "web", "app", nil)
		life.Ends()
		// A file of its own.
		path := filepath.Join(life.Files, "app")
		binary, err := os.ReadFile(path)
		world.Must(t, err)
		world.Must(t, os.WriteFile(path, binary, 0o755))
		lives = append(lives, life)
	}
	a, _ := world.StartOn(w, r)
	probe := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, probe))
	for _, life := range lives {
		r.Tell(func() { r.All = map[string]containers.Container{life.ID: life.Container} }, life.Pod)
		world.Until(t, "it to see the container", 30*time.Second, func() bool {
			before := world.Counted(w, probe.UID)
			life.Runs("app")
			return world.Counted(w, probe.UID) > before
		})
		world.HasLinks(w, a, probe.UID, 1)
	}
}

// settles has an agent that was started do all that it does of itself.
func settles(t *testing.T, a *agent.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := a.Settled(ctx); err != nil {
		t.Log(err)
	}
	for range 3 {
		a.Reconcile(ctx)
	}
}

// TestANamespaceHasNoPodsOnAHostWithoutARuntime, where units of systemd take their place, and says so.
func TestANamespaceHasNoPodsOnAHostWithoutARuntime(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	unit := r.Start("", "shop.service", "shop.service", map[string]string{"systemd.unit": "shop.service"})
	a, _ := world.StartOn(w, r)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	_ = w.Accept(a, p)
	world.Until(t, "the status to say so", 30*time.Second, func() bool {
		return strings.Contains(world.StatusOf(a, p.Application.Name).Error, "--container-runtime-endpoint")
	})
	if unit.Runs("app"); world.LinkPins(w, p.UID) > 0 {
		t.Error("the program of a namespace is in a unit of the host")
	}
}

// TestProgramsInPodsSeeTheirOwn has a team attach to the network, the cgroup and the sockets of
// its pods, whose devices have the same number as those of another team's.
func TestProgramsInPodsSeeTheirOwn(t *testing.T) {
	need.Kernel(t)
	world.Quiet(t)
	frame := func(p *world.Pod) {
		peer, err := net.InterfaceByName(p.Peer)
		world.Must(t, err)
		world.Must(t, world.SendFrame(peer.Index))
	}
	connects := func(p *world.Pod) { p.Task.Does("connect", 1) }
	listens := func(p *world.Pod) {
		world.Within(t, p.Network(), func() error {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
			if err != nil {
				return err
			}
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", l.Addr().String())
			if err != nil {
				return err
			}
			return errors.Join(c.Close(), l.Close())
		})
	}
	for hook, c := range map[string]struct {
		object, program string
		cause           func(*world.Pod)
	}{
		"xdp":             {"xdp_count", "count_packets", frame},
		"tcx/ingress":     {"tcx_count", world.FunctionOf("tcx/ingress"), frame},
		"tc/ingress":      {"tcx_count", world.FunctionOf("tc/ingress"), frame},
		"cgroup/connect4": {"cgroup_connect4", "cgroup_connect4", connects},
		"lsm_cgroup":      {"lsm_cgroup_count", "lsm_cgroup_count", connects},
		"sk_lookup":       {"sk_lookup_count", "sk_lookup_count", listens},
	} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, r := world.New(t), world.NewRuntime(t)
			ours, others := r.Start("team-a", "web", "app", nil).Connected("peer-a"), r.Start("team-b", "web", "app", nil).Connected("peer-b")
			a, stop := world.StartOn(w, r)
			at := v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}}
			switch {
			case hook == "lsm_cgroup":
				at.Functions = &v1alpha1.Functions{Names: []string{"socket_create"}}
			case !strings.Contains(hook, "cgroup") && hook != "sk_lookup":
				at.Interfaces = &v1alpha1.Interfaces{Names: []string{"eth0"}}
			}
			p := world.OfTeam(w, "team-a", c.object, c.program, at)
			world.Must(t, w.Accept(a, p))
			sees := func(what string, pod *world.Pod, want bool) {
				t.Helper()
				before := world.Counted(w, p.UID)
				c.cause(pod)
				got := func() bool { return world.Counted(w, p.UID) > before }
				if want {
					world.Until(t, what, 10*time.Second, got)
				} else if c.cause(pod); got() {
					t.Errorf("%s: it counts", what)
				}
			}
			world.HasLinks(w, a, p.UID, 1)
			sees("its own pod", ours, true)
			sees("the other team's", others, false)
			stop()
			a, stop = world.StartOn(w, r)
			world.HasLinks(w, a, p.UID, 1)
			sees("its own pod after a restart", ours, true)
			for name, but := range map[string][]containers.Pod{"container": {ours.Pod}, "pod": nil} {
				if hook == "xdp" && name == "pod" {
					// What runs there has no link of its own, and ends with the chain.
					continue
				}
				stop()
				back := ours.Unanswered(but...)
				a, stop = world.StartOn(w, r)
				settles(t, a)
				sees("its own pod while the runtime does not answer for the "+name, ours, true)
				back()
				world.HasLinks(w, a, p.UID, 1)
				sees("its own pod when it has answered for the "+name, ours, true)
			}

			id := ours.Pod.NetnsID
			ours.Dies()
			world.HasLinks(w, a, p.UID, 0)
			if n := world.HeldNamespaces(t, id); n > 0 {
				t.Errorf("the network namespace of a pod that ended is held by %d descriptors", n)
			}
			next := r.Start("team-a", "web", "app", nil).Connected("peer-c")
			r.Tell(func() {})
			world.HasLinks(w, a, p.UID, 1)
			sees("the pod's next life", next, true)
			sees("the other team's all the same", others, false)
		})
	}
}

// TestAContainerThatIsInTheWayIsLeftOut has containers whose files are no binaries, lie where the
// kernel may wait for them, or are not there. Nobody else is held up by them.
func TestAContainerThatIsInTheWayIsLeftOut(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	ours := r.Start("team-a", "web", "app", nil)
	broken, gone, linked := r.Start("team-a", "broken", "app", nil), r.Start("team-a", "gone", "app", nil), r.Start("team-a", "linked", "app", nil)
	world.Must(t, os.WriteFile(filepath.Join(broken.Files, "app"), []byte("#!/bin/sh\n"), 0o755))
	world.Must(t, os.Remove(filepath.Join(linked.Files, "app")))
	world.Must(t, os.Symlink("/proc/self/exe", filepath.Join(linked.Files, "app")))
	gone.Task.Ends()
	a, _ := world.StartOn(w, r)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, p))
	world.HasLinks(w, a, p.UID, 1)
	ours.Runs("app")
	if got := world.Counted(w, p.UID); got != world.Worked {
		t.Errorf("counted %d, want %d", got, world.Worked)
	}

	// A file system that a container mounted itself is none of the node's.
	upper, work := r.T.TempDir(), r.T.TempDir()
	mounted := r.Start("team-b", "mounted", "app", nil)
	over := filepath.Join(mounted.Files, "own")
	world.Must(t, os.Mkdir(over, 0o755))
	world.Must(t, unix.Mount("overlay", over, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", r.Image, upper, work)))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	at := world.InPods(v1alpha1.Pods{})
	at.Binary = &v1alpha1.UserBinary{Path: "/own/app", Symbol: "work"}
	own := world.OfTeam(w, "team-b", "uprobe_count", "uprobe_count", at)
	if err := w.Accept(a, own); err == nil || !strings.Contains(err.Error(), "its file system may not answer") {
		t.Errorf("a file of another mount: %v", err)
	}
}
