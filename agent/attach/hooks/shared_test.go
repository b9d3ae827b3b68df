package hooks_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// ofTeamNamed is an application of a namespace of its own name.
func ofTeamNamed(w *world.World, namespace, name, object, program string, at v1alpha1.Attachment) intent.Payload {
	p := world.OfTeam(w, namespace, object, program, at)
	p.UID, p.Application.Name = "uid-"+namespace+"-"+name, name
	return p
}

// isLeftOut waits until an application has attached so many links, and says of another that it has no room.
func isLeftOut(t *testing.T, a *agent.Agent, p intent.Payload, attached int, says ...string) {
	t.Helper()
	var all string
	world.Until(t, fmt.Sprintf("%s to have %d links and to say %q", p.Application.Name, attached, says), 30*time.Second, func() bool {
		all = ""
		runs := 0
		for _, s := range a.Status() {
			if s.UID != p.UID {
				continue
			}
			all = s.Error
			for _, program := range s.Programs {
				for _, l := range program.Links {
					switch {
					case l.State == agent.Attached:
						runs++
					case l.State == agent.Waiting:
						// A look-up took long, and is made again.
						return false
					case l.State != agent.Failed || !strings.Contains(s.Error, l.Error):
						t.Errorf("%s on %s is %s: %s", l.Hook, l.Target, l.State, l.Error)
					}
				}
			}
		}
		for _, one := range says {
			if !strings.Contains(all, one) {
				return false
			}
		}
		return runs == attached
	})
}

// TestANamespaceHasAShareOfATracepoint: of five applications, four run at the tracepoint. The last one runs when another ends.
func TestANamespaceHasAShareOfATracepoint(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	r.Start("team-a", "web", "app", nil)
	r.Start("team-b", "web", "app", nil)
	o, registry := w.Options(), prometheus.NewRegistry()
	o.Containers, o.Observer = r.Source, metrics.New(registry)
	a, stop := w.Run(o)
	at := v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter", Pods: &v1alpha1.Pods{}}
	var all []intent.Payload
	for i := range 5 {
		all = append(all, ofTeamNamed(w, "team-a", fmt.Sprint("app-", i), "raw_tp_count", "raw_tp_count", at))
	}
	world.Must(t, w.Accept(a, all[1:]...))
	// What comes later has no room, also if it is older.
	w.Give(a, all[0])
	other := ofTeamNamed(w, "team-b", "other", "raw_tp_count", "raw_tp_count", at)
	w.Give(a, other)
	keeps := func() {
		t.Helper()
		isLeftOut(t, a, all[0], 0, "raw_tp_count", "tracepoint sys_enter", "programs of namespace team-a there: 4 of 4 (app-1, app-2, app-3, app-4)",
			"--namespace-target-programs")
		for _, p := range append(all[1:], other) {
			world.HasLinks(w, a, p.UID, 1)
		}
	}
	keeps()
	counted := series.Of(t, registry)
	if programs, leftOut := counted["skep_agent_shared_target_programs"], counted["skep_agent_shared_left_out"]; programs != 5 || leftOut != 1 {
		t.Errorf("%v programs are counted at one target, and %v left out; want 5 and 1", programs, leftOut)
	}
	stop()
	a, _ = world.StartOn(w, r)
	keeps()
	w.Give(a, w.Tombstone(all[2]))
	world.HasLinks(w, a, all[0].UID, 1)
}

// TestAnAdminGrantsANamespaceMore: an application has the room that its intent grants, and keeps what runs when that is taken back,
// also by the intent of another one. Other namespaces have no more.
func TestAnAdminGrantsANamespaceMore(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	r.Start("team-a", "web", "app", nil)
	r.Start("team-b", "web", "app", nil)
	o := w.Options()
	o.Containers, o.SharedTargets.NamespacePrograms = r.Source, 1
	a, _ := w.Run(o)
	on := func(namespace, name string, granted *intent.Grant) intent.Payload {
		p := ofTeamNamed(w, namespace, name, "raw_tp_count", "raw_tp_count", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter", Pods: &v1alpha1.Pods{}})
		p.Grant = granted
		return p
	}
	two := &intent.Grant{TargetPrograms: 2}
	world.Must(t, w.Accept(a, on("team-a", "first", two), on("team-a", "second", two), on("team-b", "first", nil)))
	third, other := on("team-a", "third", two), on("team-b", "second", nil)
	w.Give(a, third, other)
	isLeftOut(t, a, third, 0, "programs of namespace team-a there: 2 of 2 (first, second)", "sharedTargets of the policy baseline")
	isLeftOut(t, a, other, 0, "programs of namespace team-b there: 1 of 1 (first)")
	shares := map[string]v1alpha1.NamespaceShare{}
	for _, s := range a.Status() {
		if s.SharedTargets != nil {
			shares[s.UID] = *s.SharedTargets
		}
	}
	want := v1alpha1.NamespaceShare{Namespace: "team-a", Programs: 2, ProgramsLimit: 2, TextPagesLimit: 64, LeftOut: 1}
	if shares[third.UID] != want || shares["uid-team-a-first"] != want {
		t.Errorf("its namespace has %+v, want %+v", shares[third.UID], want)
	}
	if want = (v1alpha1.NamespaceShare{Namespace: "team-b", Programs: 1, ProgramsLimit: 1, TextPagesLimit: 64, LeftOut: 1}); shares[other.UID] != want {
		t.Errorf("the other namespace has %+v, want %+v", shares[other.UID], want)
	}
	// The grant is taken back: what runs stays, and the place of what ends is not filled.
	fourth := on("team-a", "fourth", nil)
	w.Give(a, fourth)
	isLeftOut(t, a, third, 0, "programs of namespace team-a there: 2 of 1")
	for _, name := range []string{"first", "second"} {
		world.HasLinks(w, a, "uid-team-a-"+name, 1)
	}
	w.Give(a, w.Tombstone(on("team-a", "second", nil)))
	isLeftOut(t, a, third, 0, "programs of namespace team-a there: 1 of 1 (first)")
}

// TestWhatStaysOfAVersionBeforeCounts: an update that lacks a target leaves what runs, which has its place as long.
func TestWhatStaysOfAVersionBeforeCounts(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	r.Start("team-a", "web", "app", nil)
	o := w.Options()
	o.Containers, o.SharedTargets.NamespacePrograms = r.Source, 1
	a, stop := w.Run(o)
	on := func(tracepoint string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: tracepoint, Pods: &v1alpha1.Pods{}}
	}
	first, second := ofTeamNamed(w, "team-a", "first", "raw_tp_count", "raw_tp_count", on("sys_enter")),
		ofTeamNamed(w, "team-a", "second", "raw_tp_count", "raw_tp_count", on("sys_enter"))
	first.Created, second.Created = 1, 2
	world.Must(t, w.Accept(a, first))
	update := func(at ...v1alpha1.Attachment) {
		first = ofTeamNamed(w, "team-a", "first", "raw_tp_count", "raw_tp_count", v1alpha1.Attachment{})
		first.Programs[0].Attach, first.Created = at, 1
		w.Give(a, first)
	}
	update(on("sys_exit"), on("sys_of_no_kernel"))
	isLeftOut(t, a, first, 2, "sys_of_no_kernel")
	w.Give(a, second)
	keeps := func() {
		t.Helper()
		isLeftOut(t, a, second, 0, "programs of namespace team-a there: 1 of 1 (first)")
		isLeftOut(t, a, first, 2, "sys_of_no_kernel")
	}
	keeps()
	stop()
	a, _ = w.Run(o)
	keeps()
	update(on("sys_exit"))
	world.HasLinks(w, a, first.UID, 1)
	world.HasLinks(w, a, second.UID, 1)
}

// TestWhatRunsBeyondABoundOutlivesItsContainer: a probe in a file that containers share stays for the others, whichever it was made through.
func TestWhatRunsBeyondABoundOutlivesItsContainer(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	first := r.Start("team-a", "web-1", "app", nil)
	o := w.Options()
	o.Containers = r.Source
	a, stop := w.Run(o)
	both := []intent.Payload{
		ofTeamNamed(w, "team-a", "one", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{})),
		ofTeamNamed(w, "team-a", "two", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{})),
	}
	world.Must(t, w.Accept(a, both...))
	run := func() {
		t.Helper()
		for _, p := range both {
			world.HasLinks(w, a, p.UID, 1)
		}
	}
	run()
	stop()
	o.SharedTargets.NamespacePrograms = 1
	a, _ = w.Run(o)
	run()
	second := r.Start("team-a", "web-2", "app", nil)
	for _, gone := range []*world.Pod{first, second} {
		r.Start("team-a", "web-"+gone.ID, "app", nil)
		gone.Dies()
		world.Must(t, w.Accept(a))
		run()
	}
}

// TestATeamLeavesTheClusterPlacesAtItsContainers: the kernel runs 64 programs of a hook at a cgroup, and the team asks for all.
func TestATeamLeavesTheClusterPlacesAtItsContainers(t *testing.T) {
	need.Kernel(t)
	w, r := world.New(t), world.NewRuntime(t)
	onLoopback(t, r.Start("team-a", "web", "app", nil))
	a, _ := world.StartOn(w, r)
	var all []intent.Payload
	for i := range 64 {
		all = append(all, ofTeamNamed(w, "team-a", fmt.Sprintf("app-%02d", i), "sockets", "rewrite_4242",
			v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}}))
	}
	w.Give(a, all[:quota.MaxAtOwn]...)
	for _, p := range all[:quota.MaxAtOwn] {
		world.HasLinks(w, a, p.UID, 1)
	}
	w.Give(a, all[quota.MaxAtOwn:]...)
	for _, p := range all[quota.MaxAtOwn:] {
		isLeftOut(t, a, p, 0, "cgroup/connect4 at /", "programs of namespace team-a there: 48 of 48 (app-00, app-01, app-02, app-03, 44 more)")
	}
	cluster := world.OfTeam(w, "", "sockets", "deny_4343", v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{Containers: []string{"app"}}})
	cluster.Application = world.Identity("deny")
	w.Give(a, cluster)
	world.HasLinks(w, a, cluster.UID, 1)
}

// pagesInPods writes a binary into the image of all pods, whose functions lie in a page each.
func pagesInPods(t *testing.T, r *world.Runtime, pages int) {
	t.Helper()
	var functions []userbinary.Function
	for i := range pages {
		functions = append(functions, userbinary.Function{Name: fmt.Sprintf("page_%03d", i), Code: bytes.Repeat([]byte{0x90}, 4095)})
	}
	if err := os.WriteFile(filepath.Join(r.Image, "pages"), userbinary.Make(functions, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestANamespaceProbesFewPagesOfAFile: a probe copies its page of text for each process that maps the file.
func TestANamespaceProbesFewPagesOfAFile(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	world.NeedHook(t, "uprobe.multi")
	w, r := world.New(t), world.NewRuntime(t)
	pagesInPods(t, r, 70)
	r.Start("team-a", "web", "app", nil)
	r.Start("team-b", "web", "app", nil)
	a, stop := world.StartOn(w, r)
	in := func(team, name string, symbols ...string) intent.Payload {
		p := ofTeamNamed(w, team, name, "uprobe_count", "on_entry", v1alpha1.Attachment{Hook: "uprobe.multi",
			Binary: &v1alpha1.UserBinary{Path: "/pages", Symbols: &v1alpha1.Symbols{Names: symbols}}, Pods: &v1alpha1.Pods{}})
		p.ObjectDigest = w.Object(world.FunctionsObject)
		return p
	}
	whole, most := in("team-a", "whole", "page_*"), in("team-a", "most", "page_00*", "page_01*", "page_02*", "page_03*", "page_04*")
	// The last page is one that the others have: the functions are a header away from the beginning of a page.
	rest, beyond, same := in("team-a", "rest", "page_051", "page_052"), in("team-a", "beyond", "page_05*", "page_06*"), in("team-a", "same", "page_00*")
	one := ofTeamNamed(w, "team-a", "one", "uprobe_count", "uprobe_count", v1alpha1.Attachment{Hook: "uprobe",
		Binary: &v1alpha1.UserBinary{Path: "/pages", Symbol: "page_069"}, Pods: &v1alpha1.Pods{}})
	theirs := in("team-b", "theirs", "page_05*", "page_06*")
	w.Give(a, whole)
	isLeftOut(t, a, whole, 0, "/pages: pages of its text with probes of namespace team-a: 0 of 64, and 70 more are asked for", "--namespace-text-pages")
	w.Give(a, most)
	world.HasLinks(w, a, most.UID, 1)
	w.Give(a, rest, beyond, same, one, theirs)
	keeps := func() {
		t.Helper()
		isLeftOut(t, a, beyond, 0, "/pages: pages of its text with probes of namespace team-a: 53 of 64 (most, one, rest, same), and 17 more are asked for")
		for _, p := range []intent.Payload{most, rest, same, one, theirs} {
			world.HasLinks(w, a, p.UID, 1)
		}
	}
	keeps()
	stop()
	a, _ = world.StartOn(w, r)
	keeps()
	w.Give(a, w.Tombstone(most))
	world.HasLinks(w, a, beyond.UID, 1)
}

// TestANamespaceHasAShareOfAFunction: links for many functions that differ by what they exclude run at the same functions, and so do
// those of the kernel.
func TestANamespaceHasAShareOfAFunction(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	inFile := func(names, exclude string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "uprobe.multi", Pods: &v1alpha1.Pods{},
			Binary: &v1alpha1.UserBinary{Path: "/app", Symbols: &v1alpha1.Symbols{Names: []string{names}, Exclude: []string{exclude}}}}
	}
	inKernel := v1alpha1.Attachment{Hook: "fentry", Pods: &v1alpha1.Pods{}, Functions: &v1alpha1.Functions{Names: []string{"security_task_getpgid"}}}
	for hook, c := range map[string]struct {
		program string
		object  []byte
		// each has its attachments; two of all run.
		first, second, other []v1alpha1.Attachment
		runs                 [3]int
		holders              string
	}{
		"uprobe.multi": {
			"on_entry", world.FunctionsObject, []v1alpha1.Attachment{inFile("wor*", "nothing"), inFile("wor*", "none"), inFile("wor*", "no")},
			nil, []v1alpha1.Attachment{inFile("wor?", "nothing")},
			[3]int{2, 0, 0}, "(first)",
		},
		"fentry": {
			"on_fentry", tenantsObject, []v1alpha1.Attachment{inKernel}, []v1alpha1.Attachment{inKernel}, []v1alpha1.Attachment{inKernel},
			[3]int{1, 1, 0}, "(first, second)",
		},
	} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w, r := world.New(t), world.NewRuntime(t)
			r.Start("team-a", "web", "app", nil)
			o := w.Options()
			o.Containers, o.SharedTargets.NamespacePrograms = r.Source, 2
			a, stop := w.Run(o)
			var all []intent.Payload
			for i, at := range [][]v1alpha1.Attachment{c.first, c.second, c.other} {
				p := ofTeamNamed(w, "team-a", []string{"first", "second", "other"}[i], "uprobe_count", c.program, v1alpha1.Attachment{})
				p.ObjectDigest, p.Programs[0].Attach = w.Object(c.object), at
				if all = append(all, p); at == nil {
					continue
				}
				w.Give(a, p)
				isLeftOut(t, a, p, c.runs[i])
			}
			keeps := func() {
				t.Helper()
				isLeftOut(t, a, all[2], 0, "programs of namespace team-a there: 2 of 2 "+c.holders)
				isLeftOut(t, a, all[0], c.runs[0])
				isLeftOut(t, a, all[1], c.runs[1])
			}
			keeps()
			stop()
			a, _ = w.Run(o)
			keeps()
		})
	}
}
