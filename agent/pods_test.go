package agent_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// runtimeOf stands for a container runtime: what it runs are real processes in cgroups and file
// systems of their own, each with a pod of its own.
type runtimeOf struct {
	t    testing.TB
	root string
	// image is the folder that all containers have their files from, and writable one without
	// an overlay.
	image string
	mu    sync.Mutex
	all   map[string]containers.Container
	err   error
	wake  func(changed ...containers.Pod)
}

func newRuntime(t testing.TB) *runtimeOf {
	t.Helper()
	r := &runtimeOf{t: t, root: tasks.Root(t), image: t.TempDir(), all: map[string]containers.Container{}, wake: func(...containers.Pod) {}}
	for name, body := range map[string][]byte{
		"app": userbinary.Worker(worked - 1), "busy": userbinary.Worker(10*worked - 1), "declares": userbinary.Make(declaring(), userbinary.Options{}),
	} {
		if err := os.WriteFile(filepath.Join(r.image, name), body, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// worked is how often /app of a container calls work, and a tenth of how often /busy does.
const worked = 1000

// source is agent.Options.Containers.
func (r *runtimeOf) source(wake func(changed ...containers.Pod)) (containers.Source, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake = wake
	return r, nil
}

// Snapshot implements containers.Source.
func (r *runtimeOf) Snapshot() (*containers.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return containers.NewSnapshot(slices.Collect(maps.Values(r.all))), r.err
}

// Close implements containers.Source.
func (r *runtimeOf) Close() error { return nil }

// pod is a running container of a pod.
type podOf struct {
	containers.Container
	r      *runtimeOf
	cgroup string
	files  string
	task   *tasks.Task
	// peer is the other end of its device eth0.
	peer string
}

// start starts a pod namespace/name with one container.
func (r *runtimeOf) start(namespace, name, container string, labels map[string]string) *podOf {
	r.t.Helper()
	id := fmt.Sprintf("%s-%s-%s-%d", namespace, name, container, time.Now().UnixNano())
	above := tasks.Cgroup(r.t, filepath.Join(r.root, "pod-"+id))
	p := &podOf{r: r, cgroup: tasks.Cgroup(r.t, filepath.Join(above, container)), files: r.t.TempDir()}
	upper, work := r.t.TempDir(), r.t.TempDir()
	if err := unix.Mount("overlay", p.files, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", r.image, upper, work)); err != nil {
		r.t.Skipf("SKIPPED: no overlay can be mounted here: %v", err)
	}
	r.t.Cleanup(func() { _ = unix.Unmount(p.files, unix.MNT_DETACH) })
	p.task = tasks.StartApart(r.t, p.cgroup)
	p.task.Enters(p.files)
	p.Container = containers.Container{ID: id, Name: container, Process: r.see(p.task.PID()), CgroupPath: r.below(p.cgroup), CgroupID: inode(r.t, p.cgroup),
		Pod: containers.Pod{UID: id, Namespace: namespace, Name: name, Labels: labels, SandboxID: id, CgroupPath: r.below(above), CgroupID: inode(r.t, above),
			Sandbox: r.see(p.task.PID()), NetnsID: inode(r.t, p.network())}}
	r.tell(func() { r.all[id] = p.Container }, p.Pod)
	return p
}

// network is the path of the pod's network namespace.
func (p *podOf) network() string { return fmt.Sprintf("/proc/%d/ns/net", p.task.PID()) }

// connected gives the pod a device eth0, and the test the other end.
func (p *podOf) connected(peer string) *podOf {
	p.r.t.Helper()
	p.peer = peer
	eth0(p.r.t, p.network(), peer)
	within(p.r.t, p.network(), events.LoopbackUp)
	return p
}

// tell changes what the runtime says of pods, and that it did.
func (r *runtimeOf) tell(change func(), of ...containers.Pod) {
	r.mu.Lock()
	change()
	wake := r.wake
	r.mu.Unlock()
	wake(of...)
}

// ends has the runtime say that the container ended.
func (p *podOf) ends() { p.r.tell(func() { delete(p.r.all, p.ID) }, p.Pod) }

// dies ends the container's process, of which the runtime tells afterwards.
func (p *podOf) dies() {
	p.task.Ends()
	p.ends()
}

func (r *runtimeOf) below(dir string) string { return strings.TrimPrefix(dir, r.root+"/") }

// see looks at a process as package containers does.
func (r *runtimeOf) see(pid int) process.Process {
	r.t.Helper()
	folder, err := process.Open(pid)
	if err != nil {
		r.t.Fatal(err)
	}
	defer folder.Close()
	began, err := folder.StartTime()
	if err != nil {
		r.t.Fatal(err)
	}
	in, err := folder.Cgroup()
	if err != nil {
		r.t.Fatal(err)
	}
	return process.Process{PID: pid, StartTime: began}.Within(in)
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// runs runs a program of the container's files in the container.
func (p *podOf) runs(name string) {
	p.r.t.Helper()
	cmd := exec.CommandContext(p.r.t.Context(), filepath.Join(p.files, name))
	tasks.Into(p.r.t, cmd, p.cgroup, (*exec.Cmd).Run)
}

// startOn starts an agent that the runtime tells of its containers.
func (w *world) startOn(r *runtimeOf) (*agent.Agent, func()) {
	w.t.Helper()
	o := w.options()
	o.Containers = r.source
	return w.run(o)
}

// ofTeam is an application of a namespace with one program in pods.
func (w *world) ofTeam(namespace, object, program string, at v1alpha1.Attachment) intent.Payload {
	p := w.intent(namespace+"-"+program, object, v1alpha1.Program{Name: program, Attach: []v1alpha1.Attachment{at}})
	p.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: program}
	return p
}

// counted is how often the programs of an application ran.
func (w *world) counted(uid string) uint64 {
	w.t.Helper()
	pins, err := filepath.Glob(filepath.Join(w.bpffs, uid, "*", "m-counts"))
	if err != nil || len(pins) != 1 {
		w.t.Fatalf("pins of counts of %s: %v, %v", uid, pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	var cpus []uint64
	if err := m.Lookup(uint32(0), &cpus); err != nil {
		w.t.Fatal(err)
	}
	var sum uint64
	for _, n := range cpus {
		sum += n
	}
	return sum
}

// hasLinks waits until an application has links at so many places and none beside, and is well.
func (w *world) hasLinks(a *agent.Agent, uid string, n int) {
	t := w.t
	t.Helper()
	until(t, fmt.Sprintf("%s to have %d links", uid, n), 30*time.Second, func() bool {
		for _, s := range a.Status() {
			if s.UID != uid {
				continue
			}
			have := 0
			for _, p := range s.Programs {
				for _, l := range p.Links {
					if l.State == agent.Attached {
						have++
					}
				}
			}
			return have == n && w.linkPins(uid) == n && s.Error == "" && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionDeployed)
		}
		return false
	})
}

// linkPins counts the pins of an application's links, and of its filters and chains' programs.
func (w *world) linkPins(uid string) int {
	pins, _ := filepath.Glob(filepath.Join(w.bpffs, uid, "+links", "*"))
	pins = slices.DeleteFunc(pins, func(pin string) bool { return strings.Contains(filepath.Base(pin), "+") })
	chains, _ := filepath.Glob(filepath.Join(w.bpffs, "+xdp", "*", "link"))
	return len(pins) + len(chains)
}

func inPods(pods v1alpha1.Pods) v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/app", Symbol: "work"}, Pods: &pods}
}

func amd64(t testing.TB) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the binary is one of x86-64")
	}
}

// TestATeamTracesItsOwnPods has two teams with pods of one image. The probe is in the one file
// that all share.
func TestATeamTracesItsOwnPods(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	w, r := newWorld(t), newRuntime(t)
	ours, others := r.start("team-a", "web", "app", nil), r.start("team-b", "web", "app", nil)
	a, stop := w.startOn(r)
	p := w.ofTeam("team-a", "uprobe_count", "uprobe_count", inPods(v1alpha1.Pods{}))
	must(t, w.accept(a, p))
	w.hasLinks(a, p.UID, 1)
	sees := func(what string, want uint64) {
		t.Helper()
		if got := w.counted(p.UID); got != want {
			t.Errorf("%s: counted %d, want %d", what, got, want)
		}
	}
	ours.runs("app")
	for range 20 {
		others.runs("app")
	}
	sees("one pod", worked)

	second := r.start("team-a", "web-2", "app", nil)
	until(t, "the second pod", 10*time.Second, func() bool { before := w.counted(p.UID); second.runs("app"); return w.counted(p.UID) > before })
	before := w.counted(p.UID)
	ours.runs("app")
	second.runs("app")
	sees("two pods with one file have one probe", before+2*worked)
	w.hasLinks(a, p.UID, 1)

	// The probe was made through the files of the first one.
	ours.ends()
	until(t, "the first pod to go", 10*time.Second, func() bool { before = w.counted(p.UID); ours.runs("app"); return w.counted(p.UID) == before })
	w.hasLinks(a, p.UID, 1)
	second.runs("app")
	sees("the second pod goes on", before+worked)

	stop()
	a, _ = w.startOn(r)
	w.hasLinks(a, p.UID, 1)
	second.runs("app")
	others.runs("app")
	sees("after a restart", before+2*worked)

	second.ends()
	w.hasLinks(a, p.UID, 0)
	second.runs("app")
	others.runs("app")
	sees("no pod is left", before+2*worked)
}

// TestTwoTeamsReadTheArgumentsOfTheirProbes has a probe of USDT in a file that their pods share.
func TestTwoTeamsReadTheArgumentsOfTheirProbes(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	w, r := newWorld(t), newRuntime(t)
	a, _ := w.startOn(r)
	at := v1alpha1.Attachment{
		Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: "/declares", USDT: &v1alpha1.USDT{Provider: "skep", Name: "one"}}, Pods: &v1alpha1.Pods{},
	}
	type team struct {
		pod  *podOf
		uid  string
		runs uint64
	}
	teams := []team{{runs: 3}, {runs: 5}}
	var all []intent.Payload
	for i := range teams {
		namespace := fmt.Sprintf("team-%d", i)
		p := w.ofTeam(namespace, "uprobe_count", "on_probe", at)
		p.ObjectDigest = w.object(weakUSDT())
		teams[i].pod, teams[i].uid, all = r.start(namespace, "web", "app", nil), p.UID, append(all, p)
	}
	must(t, w.accept(a, all...))
	for _, team := range teams {
		w.hasLinks(a, team.uid, 1)
	}
	for _, team := range teams {
		for range team.runs {
			team.pod.runs("declares")
		}
	}
	for i, team := range teams {
		var got seen
		if err := binary.Read(bytes.NewReader(w.sectionOf(team.uid, "%2ebss")), binary.NativeEndian, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(argumentsOfOne(team.runs), got); diff != "" {
			t.Errorf("team %d read (-want +got):\n%s", i, diff)
		}
	}
}

// sectionOf reads a data section of an application.
func (w *world) sectionOf(uid, escaped string) []byte {
	w.t.Helper()
	pins, err := filepath.Glob(filepath.Join(w.bpffs, uid, "*", "m-"+escaped))
	if err != nil || len(pins) != 1 {
		w.t.Fatalf("pins of %s of %s: %v, %v", escaped, uid, pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	body, err := m.LookupBytes(uint32(0))
	if err != nil {
		w.t.Fatal(err)
	}
	return body
}

// TestPodsAreChosen has an application of the cluster, and two of a namespace, choose pods.
func TestPodsAreChosen(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	w, r := newWorld(t), newRuntime(t)
	front, back := map[string]string{"app": "front"}, map[string]string{"app": "back"}
	pods := []*podOf{r.start("team-a", "front", "app", front), r.start("team-a", "back", "app", back), r.start("team-a", "front", "istio-proxy", front),
		r.start("team-b", "front", "app", front)}
	o := w.options()
	o.Containers = r.source
	o.NamespaceLabels = func(name string) (map[string]string, bool, bool) {
		return map[string]string{"tier": name[len(name)-1:]}, true, true
	}
	a := w.startWith(o)
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
		p := w.ofTeam(c.namespace, "uprobe_count", "uprobe_count", inPods(c.pods))
		p.UID, p.Application.Name = fmt.Sprint("uid-", i), fmt.Sprint("app-", i)
		if c.namespace == "" {
			p.Application.Kind = v1alpha1.KindClusterBpfApplication
		}
		payloads = append(payloads, p)
	}
	must(t, w.accept(a, payloads...))
	for i, c := range cases {
		places := 0
		if slices.Contains(c.want, true) {
			places = 1
		}
		w.hasLinks(a, payloads[i].UID, places)
	}
	for i, c := range cases {
		for j, pod := range pods {
			before := w.counted(payloads[i].UID)
			pod.runs("app")
			if got := w.counted(payloads[i].UID) - before; got != 0 && got != worked || (got > 0) != c.want[j] {
				t.Errorf("%q chooses %+v: %d events of %s of pod %s/%s, want some: %v", c.namespace, c.pods, got, pod.Name, pod.Pod.Namespace, pod.Pod.Name, c.want[j])
			}
		}
	}
}

// TestWhatRunsStaysWhilePodsAreNotKnown has the runtime say nothing, as before its first answer.
func TestWhatRunsStaysWhilePodsAreNotKnown(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	w, r := newWorld(t), newRuntime(t)
	ours := r.start("team-a", "web", "app", nil)
	a, stop := w.startOn(r)
	probe := w.ofTeam("team-a", "uprobe_count", "uprobe_count", inPods(v1alpha1.Pods{}))
	traced := w.ofTeam("team-a", "tracepoint_count", "tracepoint_count", v1alpha1.Attachment{
		Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid", Pods: &v1alpha1.Pods{},
	})
	must(t, w.accept(a, probe, traced))
	w.hasLinks(a, probe.UID, 1)
	w.hasLinks(a, traced.UID, 1)
	stop()

	left := r.all
	r.tell(func() { r.all, r.err = map[string]containers.Container{}, containers.ErrNotRead })
	a, _ = w.startOn(r)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := a.Settled(ctx); err != nil {
		t.Log(err)
	}
	for range 3 {
		a.Reconcile(ctx)
	}
	ours.runs("app")
	if got := w.counted(probe.UID); got != worked {
		t.Errorf("counted %d while the pods are not known, want %d", got, worked)
	}
	r.tell(func() { r.all, r.err = left, nil })
	w.hasLinks(a, probe.UID, 1)
	w.hasLinks(a, traced.UID, 1)
	ours.runs("app")
	if got := w.counted(probe.UID); got != 2*worked {
		t.Errorf("counted %d afterwards, want %d", got, 2*worked)
	}
}

// TestProgramsInPodsSeeTheirOwn has a team attach to the network, the cgroup and the sockets of
// its pods, whose devices have the same number as those of another team's.
func TestProgramsInPodsSeeTheirOwn(t *testing.T) {
	need.Kernel(t)
	quiet(t)
	frame := func(p *podOf) {
		peer, err := net.InterfaceByName(p.peer)
		must(t, err)
		must(t, sendFrame(peer.Index))
	}
	connects := func(p *podOf) { p.task.Does("connect", 1) }
	listens := func(p *podOf) {
		within(t, p.network(), func() error {
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
		cause           func(*podOf)
	}{
		"xdp":             {"xdp_count", "count_packets", frame},
		"tcx/ingress":     {"tcx_count", functionOf("tcx/ingress"), frame},
		"tc/ingress":      {"tcx_count", functionOf("tc/ingress"), frame},
		"cgroup/connect4": {"cgroup_connect4", "cgroup_connect4", connects},
		"lsm_cgroup":      {"lsm_cgroup_count", "lsm_cgroup_count", connects},
		"sk_lookup":       {"sk_lookup_count", "sk_lookup_count", listens},
	} {
		t.Run(hook, func(t *testing.T) {
			needHook(t, hook)
			w, r := newWorld(t), newRuntime(t)
			ours, others := r.start("team-a", "web", "app", nil).connected("peer-a"), r.start("team-b", "web", "app", nil).connected("peer-b")
			a, stop := w.startOn(r)
			at := v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}}
			switch {
			case hook == "lsm_cgroup":
				at.Functions = &v1alpha1.Functions{Names: []string{"socket_create"}}
			case !strings.Contains(hook, "cgroup") && hook != "sk_lookup":
				at.Interfaces = &v1alpha1.Interfaces{Names: []string{"eth0"}}
			}
			p := w.ofTeam("team-a", c.object, c.program, at)
			must(t, w.accept(a, p))
			sees := func(what string, pod *podOf, want bool) {
				t.Helper()
				before := w.counted(p.UID)
				c.cause(pod)
				got := func() bool { return w.counted(p.UID) > before }
				if want {
					until(t, what, 10*time.Second, got)
				} else if c.cause(pod); got() {
					t.Errorf("%s: it counts", what)
				}
			}
			w.hasLinks(a, p.UID, 1)
			sees("its own pod", ours, true)
			sees("the other team's", others, false)
			stop()
			a, _ = w.startOn(r)
			w.hasLinks(a, p.UID, 1)
			sees("its own pod after a restart", ours, true)

			id := ours.Pod.NetnsID
			ours.dies()
			w.hasLinks(a, p.UID, 0)
			if n := heldNamespaces(t, id); n > 0 {
				t.Errorf("the network namespace of a pod that ended is held by %d descriptors", n)
			}
			next := r.start("team-a", "web", "app", nil).connected("peer-c")
			r.tell(func() {})
			w.hasLinks(a, p.UID, 1)
			sees("the pod's next life", next, true)
			sees("the other team's all the same", others, false)
		})
	}
}

// TestAContainerThatIsInTheWayIsLeftOut has containers whose files are no binaries, lie where the
// kernel may wait for them, or are not there. Nobody else is held up by them.
func TestAContainerThatIsInTheWayIsLeftOut(t *testing.T) {
	need.Kernel(t)
	amd64(t)
	w, r := newWorld(t), newRuntime(t)
	ours := r.start("team-a", "web", "app", nil)
	broken, gone, linked := r.start("team-a", "broken", "app", nil), r.start("team-a", "gone", "app", nil), r.start("team-a", "linked", "app", nil)
	must(t, os.WriteFile(filepath.Join(broken.files, "app"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.Remove(filepath.Join(linked.files, "app")))
	must(t, os.Symlink("/proc/self/exe", filepath.Join(linked.files, "app")))
	gone.task.Ends()
	a, _ := w.startOn(r)
	p := w.ofTeam("team-a", "uprobe_count", "uprobe_count", inPods(v1alpha1.Pods{}))
	must(t, w.accept(a, p))
	w.hasLinks(a, p.UID, 1)
	ours.runs("app")
	if got := w.counted(p.UID); got != worked {
		t.Errorf("counted %d, want %d", got, worked)
	}

	// A file system that a container mounted itself is none of the node's.
	upper, work := r.t.TempDir(), r.t.TempDir()
	mounted := r.start("team-b", "mounted", "app", nil)
	over := filepath.Join(mounted.files, "own")
	must(t, os.Mkdir(over, 0o755))
	must(t, unix.Mount("overlay", over, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", r.image, upper, work)))
	t.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	at := inPods(v1alpha1.Pods{})
	at.Binary = &v1alpha1.UserBinary{Path: "/own/app", Symbol: "work"}
	own := w.ofTeam("team-b", "uprobe_count", "uprobe_count", at)
	if err := w.accept(a, own); err == nil || !strings.Contains(err.Error(), "its file system may not answer") {
		t.Errorf("a file of another mount: %v", err)
	}
}
