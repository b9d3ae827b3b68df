package agent_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// ownBPFFS gives the world a BPF file system of its own, and returns how to make
// it read-only and writable.
func ownBPFFS(w *world.World) (lock, unlock func()) {
	w.T.Helper()
	dir := w.T.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	w.BPFFS = filepath.Join(dir, "skep")
	remount := func(flags uintptr) func() {
		return func() {
			w.T.Helper()
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
				w.T.Fatal(err)
			}
		}
	}
	return remount(unix.MS_RDONLY), remount(0)
}

// reportOf is what an agent reports of an application, or nil.
func reportOf(a *agent.Agent, name string) *agent.ApplicationStatus {
	for _, s := range a.Report() {
		if s.Application.Name == name {
			return &s
		}
	}
	return nil
}

// TestAnUnloadThatFailsIsReportedAndTriedAgain has the BPF file system read-only
// while a tombstone acts.
func TestAnUnloadThatFailsIsReportedAndTriedAgain(t *testing.T) {
	need.Kernel(t)
	tcx := func(w *world.World) []intent.Payload {
		return []intent.Payload{w.Intent("app", "tcx_count", v1alpha1.Program{Name: "count_ingress", Attach: world.On("tcx/ingress", "cn0")})}
	}
	for sentence, c := range map[string]struct {
		apps func(w *world.World) []intent.Payload
		// runs: the kernel runs it until the file system can be written.
		runs bool
	}{
		"a raw tracepoint": {func(w *world.World) []intent.Payload {
			return []intent.Payload{w.Intent("app", "raw_tp_count", world.RawProgram())}
		}, true},
		"a tracepoint": {func(w *world.World) []intent.Payload {
			return []intent.Payload{w.Intent("app", "tracepoint_count", v1alpha1.Program{Name: "tracepoint_count",
				Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}}})}
		}, true},
		"a TCX link": {tcx, false},
		"a revision without a link": {func(w *world.World) []intent.Payload {
			return []intent.Payload{w.Intent("app", "raw_tp_count", v1alpha1.Program{Name: "raw_tp_count"})}
		}, false},
		"a chain of one": {func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "app", "xdp_count", "count_packets", 1)}
		}, false},
		"a chain of two": {func(w *world.World) []intent.Payload {
			return []intent.Payload{world.Member(w, "app", "xdp_count", "count_packets", 1), world.Member(w, "b", "xdp_pass", "xdp_pass", 2)}
		}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			lock, unlock := ownBPFFS(w)
			o := w.Options()
			o.BackOff = agent.BackOff{First: 300 * time.Millisecond, Most: time.Second}
			a := w.StartWith(o)
			apps := c.apps(w)
			if err := w.Accept(a, apps...); err != nil {
				t.Fatal(err)
			}
			var links []agent.LinkStatus
			if s := world.StatusOf(a, "app"); len(s.Programs) > 0 {
				links = s.Programs[0].Links
			}
			lock()
			if err := w.Accept(a, w.Tombstone(apps[0])); err == nil || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("Settled = %v", err)
			}
			for range 3 {
				<-a.Reconciled()
				s := reportOf(a, "app")
				if !s.Unloading || s.Conditions[0].Reason != "Unloading" || !strings.Contains(s.Error, "read-only file system") {
					t.Fatalf("it reads as %+v", s)
				}
			}
			if c.runs {
				for _, l := range links {
					held, err := link.NewFromID(link.ID(l.ID))
					if err != nil {
						t.Fatalf("the kernel does not run it any more: %v", err)
					}
					_ = held.Close()
				}
			}
			unlock()
			world.Until(t, "it to be gone", time.Minute, func() bool {
				s := reportOf(a, "app")
				return !s.Unloading && s.Error == "" && s.Conditions[0].Reason == "Unloaded"
			})
			for _, name := range left(t, w.BPFFS) {
				if len(apps) == 1 || strings.Contains(name, "uid-app") {
					t.Errorf("left behind: %s", name)
				}
			}
		})
	}
}

// TestProgramsAreFreedOverTime unloads three applications at once: none of their links stays, and the kernel is not given
// all programs to free together.
func TestProgramsAreFreedOverTime(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var ahead atomic.Int64
	began := time.Now()
	o := w.Options()
	o.Clock = func() time.Time { return began.Add(time.Duration(ahead.Load())) }
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	var gone []intent.Payload
	for _, name := range []string{"a", "b", "c"} {
		p := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
		p.UID, p.Application.Name = "uid-"+name, name
		w.Give(a, p)
		world.Until(t, "it to run", time.Minute, func() bool { a.Reconcile(t.Context()); return world.LinkPins(w, p.UID) == 1 })
		gone = append(gone, w.Tombstone(p))
	}
	a.FreeOneRevisionASecond()
	w.Give(a, gone...)
	for left := 2; left >= 0; left-- {
		a.Reconcile(t.Context())
		loaded := 0
		for _, p := range gone {
			if world.LinkPins(w, p.UID) != 0 {
				t.Errorf("%s has a link", p.UID)
			}
			if !isUnloaded(a, p) {
				loaded++
			}
		}
		if loaded != left {
			t.Errorf("%d applications are loaded, want %d", loaded, left)
		}
		ahead.Add(int64(time.Second))
	}
}

// TestACleanupDetachesAtOnceAndFreesOverTime cleans a node up: nothing is attached any more when the first
// program waits to be freed.
func TestACleanupDetachesAtOnceAndFreesOverTime(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, err := agent.New(w.Options())
	world.Must(t, err)
	w.Give(a, world.Member(w, "a", "xdp_count", "count_packets", 1), world.Member(w, "b", "xdp_pass", "xdp_pass", 2),
		w.Intent("c", "raw_tp_count", world.RawProgram()))
	world.Until(t, "them to run", time.Minute, func() bool { a.Reconcile(t.Context()); return len(world.LinksOf(a)) == 3 })
	links, waits := world.LinksOf(a), 0
	world.Must(t, a.Close())
	store, err := pins.OpenStore(w.BPFFS)
	world.Must(t, err)
	world.Must(t, store.Clear(func(int) {
		waits++
		for name, id := range links {
			if world.Runs(t, id) != 0 {
				t.Errorf("%s runs still", name)
			}
		}
	}))
	world.Must(t, store.Close())
	// Three revisions and a chain.
	if waits < 3 {
		t.Errorf("%d waited to be freed", waits)
	}
	w.LeavesNothing()
}

// TestReplacedChainsAreFreedOverTime changes the order of a chain within a second: the next one runs at once, and
// only one of those before is freed.
func TestReplacedChainsAreFreedOverTime(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	var ahead atomic.Int64
	began := time.Now()
	o := w.Options()
	o.Clock = func() time.Time { return began.Add(time.Duration(ahead.Load())) }
	a := w.Idle(o)
	a.FreeOneRevisionASecond()
	w.Give(a, world.Member(w, "a", "xdp_count", "count_packets", 10), world.Member(w, "b", "xdp_pass", "xdp_pass", 20))
	chain := func(want string) (program uint32) {
		t.Helper()
		world.Until(t, "chain "+want, time.Minute, func() bool { a.Reconcile(t.Context()); return world.MembersOf(t, a) == want })
		chains, err := a.Chains()
		world.Must(t, err)
		return chains[0].ProgramID
	}
	former := []uint32{chain("a b")}
	for i, want := range []string{"b a", "a b", "b a"} {
		w.Give(a, world.Member(w, "a", "xdp_count", "count_packets", []int32{30, 10, 30}[i]))
		former = append(former, chain(want))
	}
	former = former[:3]
	loaded := func() (n int) {
		for _, id := range former {
			if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
				n++
				_ = p.Close()
			}
		}
		return n
	}
	a.Reconcile(t.Context())
	if n := loaded(); n < 2 {
		t.Errorf("%d of the three former chains are loaded, and one is freed in a second", n)
	}
	world.Until(t, "all to be freed", time.Minute, func() bool {
		ahead.Add(int64(time.Second))
		a.Reconcile(t.Context())
		return loaded() == 0
	})
}

// TestWhatIsRevokedRunsNoMoreWhereNoLinkCanBeTakenAway has the BPF file system read-only while a tombstone acts on a
// program for the pods of a team.
func TestWhatIsRevokedRunsNoMoreWhereNoLinkCanBeTakenAway(t *testing.T) {
	need.Kernel(t)
	world.NeedAMD64(t)
	w, r := world.New(t), world.NewRuntime(t)
	lock, unlock := ownBPFFS(w)
	o := w.Options()
	o.Containers = r.Source
	a := w.StartWith(o)
	pod := r.Start("team-a", "web", "app", nil)
	p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	world.Must(t, w.Accept(a, p))
	pod.Runs("app")
	world.Until(t, "the program to run", time.Minute, func() bool { return world.Counted(w, p.UID) == world.Worked })
	ids := idsOf(a, p)
	lock()
	defer unlock()
	if err := w.Accept(a, w.Tombstone(p)); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("Settled = %v", err)
	}
	if len(ids) != 1 || world.Runs(t, ids[0]) == 0 {
		t.Fatalf("the links %v are gone, and nothing was tried", ids)
	}
	pod.Runs("app")
	if n := world.Counted(w, p.UID); n != world.Worked {
		t.Errorf("it counted %d calls, and %d before it was revoked", n, world.Worked)
	}
}

// TestAnUnloadThatFailedIsTriedAgainByTheNextAgent restarts the agent while the BPF
// file system is read-only.
func TestAnUnloadThatFailedIsTriedAgainByTheNextAgent(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	lock, unlock := ownBPFFS(w)
	o := w.Options()
	o.BackOff = agent.BackOff{First: 100 * time.Millisecond, Most: time.Second}
	a, stop := w.Run(o)
	raw, chained := w.Intent("app", "raw_tp_count", world.RawProgram()), world.Member(w, "ca", "xdp_count", "count_packets", 1)
	if err := w.Accept(a, raw, chained, world.Member(w, "cb", "xdp_pass", "xdp_pass", 2)); err != nil {
		t.Fatal(err)
	}
	lock()
	if err := w.Accept(a, w.Tombstone(raw), w.Tombstone(chained)); err == nil {
		t.Fatal("what is read-only was removed")
	}
	stop()
	a, _ = w.Run(o)
	world.Until(t, "both to be reported", time.Minute, func() bool {
		for _, name := range []string{"app", "ca"} {
			if s := reportOf(a, name); s == nil || !s.Unloading || !strings.Contains(s.Error, "read-only file system") {
				return false
			}
		}
		return true
	})
	unlock()
	world.Until(t, "both to be gone", time.Minute, func() bool {
		one, other := reportOf(a, "app"), reportOf(a, "ca")
		return !one.Unloading && one.Error == "" && !other.Unloading && other.Error == ""
	})
}

// left lists all pins.
func left(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestALinkThatSomebodyElseHoldsIsReportedUntilItEnds: a raw tracepoint's link ends
// with its last descriptor and pin.
func TestALinkThatSomebodyElseHoldsIsReportedUntilItEnds(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	p := w.Intent("app", "raw_tp_count", world.RawProgram())
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	held, err := link.NewFromID(link.ID(l.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err := w.Accept(a, w.Tombstone(p)); err == nil || !strings.Contains(err.Error(), "another pin or process holds it: "+itself()) {
		t.Errorf("Settled = %v", err)
	}
	if s := reportOf(a, "app"); !s.Unloading {
		t.Errorf("it reads as %+v", s)
	}
	if _, err := os.Stat(l.Pin); !os.IsNotExist(err) {
		t.Errorf("the pin: %v", err)
	}
	stop()
	a, _ = w.Start()
	world.Until(t, "the next agent to report it", time.Minute, func() bool {
		s := reportOf(a, "app")
		return s != nil && s.Unloading && strings.Contains(s.Error, "another pin or process holds it")
	})
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "it to be gone", time.Minute, func() bool { s := reportOf(a, "app"); return !s.Unloading && s.Error == "" })
	w.LeavesNothing()
}

// TestATeamIsNotToldWhichProcessHoldsItsLink: an administrator is.
func TestATeamIsNotToldWhichProcessHoldsItsLink(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	p := world.Tenant(w.Intent("own", "raw_tp_count", world.RawProgram()), "alpha", "own", 1, 2)
	w.Must(a, p)
	_, l := world.One(t, a)
	held, err := link.NewFromID(link.ID(l.ID))
	if err != nil {
		t.Fatal(err)
	}
	err = w.Accept(a, w.Tombstone(p))
	const want = "because another pin or process holds it; have an administrator remove the pin, or end the process"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), itself()) {
		t.Errorf("it reads %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "it to be gone", time.Minute, func() bool { s := reportOf(a, "own"); return !s.Unloading && s.Error == "" })
	w.LeavesNothing()
}

// itself is this process, as messages name it.
func itself() string { return fmt.Sprintf("process %d (", os.Getpid()) }

// TestALinkThatWasReplacedIsReportedUntilItEnds has somebody else hold the link of a version when
// another version takes its place: both run until then.
func TestALinkThatWasReplacedIsReportedUntilItEnds(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	at := v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"}
	if err := w.Accept(a, world.Version(w, "1", at)); err != nil {
		t.Fatal(err)
	}
	_, l := world.One(t, a)
	held, err := link.NewFromID(link.ID(l.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	p := world.Version(w, "2", at)
	if err := w.Accept(a, p); err == nil || !strings.Contains(err.Error(), "another pin or process holds it") {
		t.Errorf("Settled = %v", err)
	}
	if _, now := world.One(t, a); now.ID == l.ID || now.State != agent.Attached {
		t.Errorf("the new version is told as %+v", now)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the former version to be gone", time.Minute, func() bool { return reportOf(a, "hooks").Error == "" })
	if world.Runs(t, l.ID) != 0 {
		t.Error("the former version runs, and is not reported")
	}
}
