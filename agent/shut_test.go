package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/metrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

// The calls by which an agent loads and attaches programs, pins them, and writes to maps. By the last it ends something; a
// link that is detached by none of them ends when its pin is removed.
var (
	loading   = calls{commands: []uint64{mapCreate, progLoad, btfLoad}}
	attaching = calls{commands: []uint64{linkCreate, linkUpdate, linkDetach, progAttach, progDetach, rawTracepointOpen},
		messages: []uint64{unix.RTM_NEWQDISC, unix.RTM_NEWTFILTER}}
	pinning = calls{commands: []uint64{objPin}, making: true}
	writing = calls{commands: []uint64{mapUpdate, mapDelete, mapUpdateBatch}}
	ending  = calls{commands: []uint64{linkDetach}, messages: []uint64{unix.RTM_DELTFILTER}, removing: true}
)

// A shutting is of calls that fail together.
type shutting struct {
	name string
	of   []calls
	// ends: what must end can end, on which it depends whether the hook is XDP.
	ends, endsXDP bool
	// fails is the series that counts what failed.
	fails string
}

// shuttings are all of them. A member of a chain of XDP is switched off by a write to a map, or goes when another chain is loaded,
// whose constants are written to a map.
var shuttings = []shutting{
	{"attaches", []calls{attaching}, true, true, `skep_agent_attach_duration_seconds{hook=%q,result="failed"}`},
	{"ends", []calls{loading, attaching, pinning, writing, ending}, false, false, `skep_agent_load_duration_seconds{result="failed",what="revision"}`},
	{"loads", []calls{loading}, true, true, `skep_agent_load_duration_seconds{result="failed",what="revision"}`},
	{"pins", []calls{pinning}, true, true, ""},
	{"writes", []calls{writing}, true, false, `skep_agent_load_duration_seconds{result="failed",what="revision"}`},
}

// errnos are what the kernel answers.
var errnos = []unix.Errno{unix.EPERM, unix.EBUSY, unix.ENOMEM, unix.ERANGE, unix.E2BIG, unix.EINVAL, unix.ENODEV, unix.EAGAIN}

// whole are the hooks on which every act is tried with every error of every kind of call: one of each way in which programs share
// a place.
var whole = []string{"xdp", "tcx/ingress", "tc/ingress", "cgroup_skb/egress", "raw_tp"}

// everyError has the same tried on every hook, which takes a quarter of an hour:
// SKEP_EVERY_ERROR=1 go test ./agent -run TestWhatMustEnd -timeout 60m.
var everyError = os.Getenv("SKEP_EVERY_ERROR") != ""

// TestWhatMustEndEndsWhateverTheKernelSays has applications share each hook, and changes all of them at once while calls
// fail. What must end ends, unless no call can end it. What runs is reported as running, in status and metrics. Of each
// mechanism that whole lacks, one hook has every error where it attaches and one error of each other kind of call; the others have two,
// with few applications. Loads have no deadline here, since a process has one such filter.
func TestWhatMustEndEndsWhateverTheKernelSays(t *testing.T) {
	need.Kernel(t)
	if !inOwnProcess(t) {
		return
	}
	var hooks []hook.Hook
	for _, h := range hook.All() {
		if h.Attachable && !h.RunsOnce() && h.Sharing != hook.Exclusive && world.Lacking(t, h) == nil {
			hooks = append(hooks, h)
		}
	}
	d, seen := newDoor(t), map[string]bool{}
	for _, h := range hooks {
		isFirst, isWhole := !seen[mechanism(h)], everyError || slices.Contains(whole, h.Name)
		seen[mechanism(h)] = true
		for i, errno := range errnos {
			for j, s := range shuttings {
				if errno == unix.EAGAIN && (h.IsFilter() || slices.ContainsFunc(s.of, func(c calls) bool { return slices.Contains(c.commands, progLoad) })) {
					// The kernel makes a filter again by itself (tc_new_tfilter of net/sched/cls_api.c), and the library loads a program
					// again, which package deadline ends.
					continue
				}
				if isWhole || j == 0 && (isFirst || i == 0) || j == 1 && i == 1 || isFirst && j > 1 && i == j {
					runShut(t, d, h, s, errno, isWhole || isFirst && (j > 0 || i == 0))
				}
			}
		}
	}
}

// mechanism names what hooks have in common for what ends and updates their links.
func mechanism(h hook.Hook) string {
	return fmt.Sprint(h.Sharing, h.Replace, h.IsFilter(), attach.TakesLong(h.Name), h.TakesOne(), h.Name == "xdp")
}

// few are those acts of which each is another way through the agent.
var few = []string{"stays", "revoked", "disowned", "updated"}

// runShut changes applications that share a hook while calls fail.
func runShut(t *testing.T, d *door, h hook.Hook, s shutting, errno unix.Errno, all bool) {
	t.Run(fmt.Sprintf("%s/nothing %s, %s", h.Name, s.name, unix.ErrnoName(errno)), func(t *testing.T) {
		w, registry := world.New(t), prometheus.NewRegistry()
		if h.Shape == hook.NetworkDevice {
			world.Pair(t, h, "hk0", "hk1")
		}
		o := world.Named(w)
		o.Labels, o.Observer, o.SweepInterval = map[string]string{}, metrics.New(registry), 50*time.Millisecond
		o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 500 * time.Millisecond}
		n := &shared{t: t, w: w, a: w.StartWith(o), at: world.Target(t, h), hook: h, shutting: s, acts: map[string]act{}, before: map[string]agent.LinkStatus{},
			counts: func() map[string]float64 { return series.Of(t, registry) }, says: errno.Error()}
		for name, act := range acts {
			if n.acts[name] = act; !all && !slices.Contains(few, name) {
				delete(n.acts, name)
			}
		}
		n.begin()
		defer d.opens()
		shut := slices.Clone(s.of)
		for i := range shut {
			// A filter stays until it is deleted, whatever becomes of its pin.
			shut[i].removing = shut[i].removing && !h.IsFilter()
		}
		d.shuts(errno, w.BPFFS, shut...)
		n.change()
		n.meanwhile()
		if d.opens() == 0 {
			t.Error("no call failed")
		}
		n.afterwards()
	})
}

// act is what becomes of an application: the next intent, and whether it ends what runs, whatever comes of it.
type act struct {
	next func(n *shared, was intent.Payload) intent.Payload
	ends bool
}

// acts are those of applications that run on a hook together, by name.
var acts = map[string]act{
	"stays": {next: func(_ *shared, was intent.Payload) intent.Payload { return was }},
	// Revoked, deleted, or gone from the source: each is a tombstone.
	"revoked": {func(n *shared, was intent.Payload) intent.Payload { return n.w.Tombstone(was) }, true},
	"leaves":  {func(n *shared, was intent.Payload) intent.Payload { return n.app(was.Application.Name, "1") }, true},
	"unselected": {func(n *shared, was intent.Payload) intent.Payload {
		next := n.app(was.Application.Name, "1", n.at)
		next.NodeSelector = world.Role("elsewhere")
		return next
	}, true},
	// The version that ran may run no more, and the newest one is to take its place, or the one before that.
	"disowned":  {func(n *shared, was intent.Payload) intent.Payload { return n.app(was.Application.Name, "2", n.at) }, true},
	"fallsBack": {func(n *shared, was intent.Payload) intent.Payload { return n.newer(was.Application.Name, "3", "2") }, true},
	"updated":   {next: func(n *shared, was intent.Payload) intent.Payload { return n.newer(was.Application.Name, "2", "1") }},
	"undone": {next: func(n *shared, was intent.Payload) intent.Payload {
		next := n.app(was.Application.Name, "2", n.at)
		next.Withdrawn = []intent.Payload{was}
		return next
	}},
}

// shared is a hook that applications share.
type shared struct {
	t    *testing.T
	w    *world.World
	a    *agent.Agent
	at   v1alpha1.Attachment
	hook hook.Hook
	shutting
	acts   map[string]act
	before map[string]agent.LinkStatus
	was    map[string]intent.Payload
	// last are the serials that were given last.
	last   map[string]int64
	counts func() map[string]float64
	// counted is what was counted before the calls failed.
	counted map[string]float64
	// says is the kernel's error.
	says string
}

// app is a version of an application. Each has a place of its own where the hook has places.
func (n *shared) app(name, version string, at ...v1alpha1.Attachment) intent.Payload {
	p := world.Version(n.w, version, n.at)
	p.UID, p.Application.Name = "uid-"+name, name
	p.Programs[0].Attach = nil
	for _, one := range at {
		place := int32(500 + len(name))
		if n.hook.TakesPriority() {
			one.Priority = &place
		}
		if one.Netfilter != nil {
			own := *one.Netfilter
			own.Priority, one.Netfilter = place*100+int32(name[0]), &own
		}
		p.Programs[0].Attach = append(p.Programs[0].Attach, one)
	}
	return p
}

// newer is a version that came to this node, before which another one was.
func (n *shared) newer(name, version, before string) intent.Payload {
	former := n.app(name, before, n.at)
	return world.Reached(n.app(name, version, n.at), &former)
}

// TestWhatMustEndInPodsEnds revokes a program for the pods of a team while neither its scope can be emptied, nor its link be closed,
// and then while only the scope cannot be emptied.
func TestWhatMustEndInPodsEnds(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	if !inOwnProcess(t) {
		return
	}
	w, r := world.New(t), world.NewRuntime(t)
	pod := r.Start("team-a", "web", "app", nil)
	d := newDoor(t)
	o := w.Options()
	o.Containers = r.Source
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: 500 * time.Millisecond}
	a := w.StartWith(o)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, p))
	world.HasLinks(w, a, p.UID, 1)
	link := idsOf(a, p)[0]
	d.shuts(unix.ENOMEM, w.BPFFS, writing, ending)
	defer d.opens()
	w.Give(a, w.Tombstone(p))
	world.Until(t, "it to be reported", time.Minute, func() bool { return strings.Contains(a.Report()[0].Error, "switch off its programs") })
	counted := world.Counted(w, p.UID)
	pod.Runs("app")
	s := a.Report()[0]
	if state, _ := s.NodeState(); world.Counted(w, p.UID) == counted || state != v1alpha1.NodeFailed || !s.IsAttached() {
		t.Errorf("it counts %d calls, and %d before; %s", world.Counted(w, p.UID), counted, describeShort(s))
	}
	d.shuts(unix.ENOMEM, w.BPFFS, writing)
	world.Until(t, "it to be gone", time.Minute, func() bool {
		state, _ := a.Report()[0].NodeState()
		if state == v1alpha1.NodeRemoved && world.Runs(t, link) != 0 {
			t.Errorf("link %d runs", link)
		}
		return state == v1alpha1.NodeRemoved
	})
}

// begin has all applications run.
func (n *shared) begin() {
	n.t.Helper()
	n.was, n.last = map[string]intent.Payload{}, map[string]int64{}
	var all []intent.Payload
	for name := range n.acts {
		n.was[name] = n.app(name, "1", n.at)
		all = append(all, n.was[name])
	}
	world.Must(n.t, n.w.Accept(n.a, all...))
	for name := range n.acts {
		n.before[name] = world.LinkOf(n.t, n.a, name)
	}
	n.counted = n.counts()
}

// change gives each application its next intent, and one that joins.
func (n *shared) change() {
	n.t.Helper()
	all := []intent.Payload{n.app("joins", "1", n.at)}
	for name, act := range n.acts {
		next := act.next(n, n.was[name])
		if n.last[name] = next.Serial; next.Serial != n.was[name].Serial {
			all = append(all, next)
		}
	}
	n.w.Give(n.a, all...)
}

// meanwhile waits until every intent was worked on while calls fail. Whenever it looks, no application that the kernel runs
// is reported as gone.
func (n *shared) meanwhile() {
	n.t.Helper()
	late := map[string]string{}
	defer func() {
		if n.t.Failed() {
			n.t.Logf("waited for %v", late)
		}
	}()
	world.Until(n.t, "all to be worked on", time.Minute, func() bool {
		clear(late)
		// What is reported comes first: what ended while the test looks is no contradiction.
		reports := n.reports()
		for name, runs := range n.running() {
			if why := n.lacks(reports[name], runs, n.acts[name].ends); why != "" {
				late[name] = why
			}
		}
		s, joined := reports["joins"]
		if joined && n.name != "writes" && (s.IsAttached() || s.Conditions[0].Status == "True") {
			n.t.Errorf("%s", describeShort(s))
		}
		if state, message := s.NodeState(); n.name == "attaches" && (state == v1alpha1.NodePending || n.hook.Name == "xdp" && !strings.Contains(message, n.says)) {
			late["joins"] = describeShort(s)
		}
		return n.t.Failed() || joined && len(late) == 0 && n.failed()
	})
	for series, count := range n.counts() {
		isOf := series == fmt.Sprintf(`skep_agent_attach_duration_seconds{hook=%q,result="ok"}`, n.hook.Name) && n.name != "writes"
		if (isOf || strings.HasPrefix(series, "skep_agent_drift_healed_total")) && count != n.counted[series] {
			n.t.Errorf("%s was %v, and is %v", series, n.counted[series], count)
		}
	}
}

// failed reports whether what failed was counted.
func (n *shared) failed() bool {
	name := n.fails
	if strings.Contains(name, "%q") {
		name = fmt.Sprintf(name, n.hook.Name)
	}
	return name == "" || n.counts()[name] > n.counted[name]
}

// reports are those of all applications, by name.
func (n *shared) reports() map[string]agent.ApplicationStatus {
	all := map[string]agent.ApplicationStatus{}
	for _, s := range n.a.Report() {
		all[s.Application.Name] = s
	}
	return all
}

// lacks says what is not as it must be of an application that has ended by now, or runs what it ran; empty where that is
// nothing.
func (n *shared) lacks(s agent.ApplicationStatus, runs, ends bool) string {
	n.t.Helper()
	name := s.Application.Name
	state, _ := s.NodeState()
	whole, isOld := s.Conditions[0].Status == "True", s.Serial < n.last[name]
	if runs && !isOld && (state == v1alpha1.NodeRemoved || state == v1alpha1.NodeNotSelected || ends && whole) {
		n.t.Errorf("the kernel runs it: %s", describeShort(s))
	}
	if can := n.ends; ends && (can && n.hook.Name != "xdp" || n.endsXDP && n.hook.Name == "xdp") {
		if runs || s.IsAttached() {
			return fmt.Sprintf("the kernel runs it: %v; %s", runs, describeShort(s))
		}
		return ""
	}
	if !runs || !s.IsAttached() || !n.hasLink(s) {
		n.t.Errorf("the kernel runs it: %v; it was %+v, and is %s", runs, n.before[name], describeShort(s))
	}
	if isOld || whole != (name == "stays") {
		return describeShort(s)
	}
	return ""
}

// hasLink reports whether an application is reported with the link that it had.
func (n *shared) hasLink(s agent.ApplicationStatus) bool {
	was := n.before[s.Application.Name]
	return slices.ContainsFunc(s.Programs, func(p agent.ProgramStatus) bool {
		return slices.ContainsFunc(p.Links, func(l agent.LinkStatus) bool {
			return l.ID == was.ID && l.Filter == was.Filter && l.Target == was.Target
		})
	})
}

// running reports of each application whether the kernel runs what it ran.
func (n *shared) running() map[string]bool {
	n.t.Helper()
	all := map[string]bool{}
	for name := range n.acts {
		all[name] = n.hook.Name != "xdp" && world.RunsUnder(n.t, n.before[name]) != 0
	}
	if n.hook.Name != "xdp" {
		return all
	}
	chains, err := n.a.Chains()
	world.Must(n.t, err)
	for _, c := range chains {
		for _, m := range c.Members {
			all[m.Application] = !m.SwitchedOff
		}
	}
	return all
}

// afterwards waits until all is as it should, once no call fails.
func (n *shared) afterwards() {
	n.t.Helper()
	want := map[string]v1alpha1.NodeState{"joins": v1alpha1.NodeLoaded}
	for name := range n.acts {
		want[name] = v1alpha1.NodeLoaded
	}
	want["revoked"], want["unselected"] = v1alpha1.NodeRemoved, v1alpha1.NodeNotSelected
	world.Until(n.t, "all to be as they should", time.Minute, func() bool {
		for name, s := range n.reports() {
			if state, _ := s.NodeState(); state != want[name] {
				return false
			}
		}
		runs := n.running()
		return !runs["revoked"] && !runs["unselected"] && !runs["leaves"]
	})
}

// describeShort is a status in short.
func describeShort(s agent.ApplicationStatus) string {
	state, message := s.NodeState()
	return fmt.Sprintf("%s is %s, %q, %+v", s.Application.Name, state, message, s.Programs)
}

// TestAnUpdateWhosePinStaysRuns has the kernel swap a program that may run no more under its link, and refuse the link's new pin: what
// runs now is the newest version, which is not ended in the place of the one before.
func TestAnUpdateWhosePinStaysRuns(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	if !inOwnProcess(t) {
		return
	}
	h, _ := hook.Lookup("tcx/ingress")
	d, w := newDoor(t), world.New(t)
	world.Pair(t, h, "hk0", "hk1")
	o := world.Named(w)
	o.SweepInterval, o.BackOff = 50*time.Millisecond, agent.BackOff{First: 100 * time.Millisecond, Most: 500 * time.Millisecond}
	n := &shared{t: t, w: w, a: w.StartWith(o), at: world.Target(t, h), hook: h, acts: map[string]act{"disowned": acts["disowned"]},
		before: map[string]agent.LinkStatus{}, counts: func() map[string]float64 { return nil }}
	n.begin()
	link := n.before["disowned"]
	before := world.RunsUnder(t, link)
	d.shuts(unix.ENOMEM, filepath.Join(w.BPFFS, "uid-disowned", "+links"), calls{making: true})
	defer d.opens()
	n.change()
	world.Until(t, "the newest version to run", time.Minute, func() bool {
		runs, report := world.RunsUnder(t, link), n.reports()["disowned"]
		if runs == 0 {
			t.Fatalf("nothing runs: %s", describeShort(report))
		}
		state, _ := report.NodeState()
		return runs != before && state == v1alpha1.NodeLoaded && report.Serial == n.last["disowned"]
	})
	if d.opens() == 0 {
		t.Error("no call failed")
	}
}
