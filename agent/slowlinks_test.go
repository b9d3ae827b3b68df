package agent_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// The environment of a child that keeps the lock of its memory: the file that it maps, and how
// many GiB of memory it has.
const busyFile, busyGiB = "SKEP_TEST_BUSY_FILE", "SKEP_TEST_BUSY_GIB"

// beBusy maps a file and very much of the page of zeros, which costs 2 MiB for each GiB, and has
// threads change its protection in turn: each holds the lock of the process' memory meanwhile.
// It needs no right.
func beBusy() error {
	var gib int
	if _, err := fmt.Sscan(os.Getenv(busyGiB), &gib); err != nil {
		return err
	}
	file, err := os.Open(os.Getenv(busyFile))
	if err != nil {
		return err
	}
	if _, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, gib<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	for _, advice := range []int{unix.MADV_NOHUGEPAGE, unix.MADV_POPULATE_READ} {
		if err := unix.Madvise(memory, advice); err != nil {
			return err
		}
	}
	failed := make(chan error)
	for range 8 {
		go func() {
			for {
				for _, protection := range []int{unix.PROT_READ, unix.PROT_READ | unix.PROT_WRITE} {
					if err := unix.Mprotect(memory, protection); err != nil {
						failed <- err
					}
				}
			}
		}()
	}
	fmt.Println("busy")
	return <-failed
}

// busy starts a process that has a file mapped and keeps its memory locked, and returns when it
// does.
func busy(t testing.TB, path string, gib int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), busyFile+"="+path, fmt.Sprint(busyGiB, "=", gib))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "busy\n" {
		t.Fatalf("the busy process says %q, %v", line, err)
	}
}

// inFile is an application with a uprobe in a file of its own.
func inFile(w *world.World, name string) (p intent.Payload, path string) {
	functions := []userbinary.Function{{Name: "f", Code: []byte{0x90}}}
	path = world.Install(w.T, userbinary.Make(functions, userbinary.Options{}))
	p = world.Version(w, "1", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: path, Offset: userbinary.Offset(functions, 0)}})
	p.UID, p.Application.Name = "uid-"+name, name
	return p, path
}

// BenchmarkAProbeInABusyProcess attaches a uprobe in a file that a process with 64 GiB of zeros
// maps, and unloads a program of another application meanwhile. It reports how long each takes,
// and how long the probe's end.
func BenchmarkAProbeInABusyProcess(b *testing.B) {
	w := world.New(b)
	probe, path := inFile(w, "probe")
	busy(b, path, 64)
	other := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	other.UID, other.Application.Name = "uid-other", "other"
	var attached, unloaded, ended time.Duration
	a, _ := w.Start()
	for b.Loop() {
		for _, p := range []*intent.Payload{&probe, &other} {
			w.Serial++
			p.Serial = w.Serial
		}
		if err := w.Accept(a, other); err != nil {
			b.Fatal(err)
		}
		since := time.Now()
		w.Give(a, probe)
		<-time.After(100 * time.Millisecond)
		gave := time.Now()
		w.Give(a, w.Tombstone(other))
		world.Until(b, "the other to be unloaded", 5*time.Minute, func() bool { return isUnloaded(a, other) })
		unloaded += time.Since(gave)
		world.Until(b, "the probe to be attached", 5*time.Minute, func() bool { return world.LinkPins(w, probe.UID) == 1 })
		attached += time.Since(since)
		since = time.Now()
		w.Give(a, w.Tombstone(probe))
		world.Until(b, "the probe to be unloaded", 5*time.Minute, func() bool { return isUnloaded(a, probe) })
		ended += time.Since(since)
	}
	for unit, took := range map[string]time.Duration{"attach-ms": attached, "other-ms": unloaded, "end-ms": ended} {
		b.ReportMetric(float64(took.Milliseconds())/float64(b.N), unit)
	}
}

// TestALinkThatTakesLongDelaysNobodyElse has the kernel not make the probe of one tenant. Another
// one's programs are revoked, unloaded, healed and attached meanwhile, also as probes.
func TestALinkThatTakesLongDelaysNobodyElse(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	w := world.New(t)
	world.Veth(t, "lb0", "lb1")
	a, _ := w.Start()
	gone := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter"})
	gone.UID, gone.Application.Name = "uid-gone", "gone"
	probe, _ := inFile(w, "ending")
	healed := world.Version(w, "1", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"lb0"}}})
	world.Must(t, w.Accept(a, gone, probe, healed))
	hangs, _ := inFile(w, "hangs")
	let, _ := a.HoldLinks(hangs.UID)
	t.Cleanup(let)
	w.Give(a, hangs)
	world.Until(t, "the kernel to be asked for the probe", time.Minute, func() bool { return isMaking(a, hangs) })
	comes, _ := inFile(w, "comes")
	severed := firstLink(a, healed).ID
	l, err := link.NewFromID(link.ID(severed))
	world.Must(t, err)
	world.Must(t, l.Detach())
	world.Must(t, l.Close())
	w.Give(a, w.Tombstone(gone), w.Tombstone(probe), comes)
	for what, done := range map[string]func() bool{
		"the program to be unloaded":             func() bool { return isUnloaded(a, gone) },
		"the probe of another to be unloaded":    func() bool { return isUnloaded(a, probe) },
		"the link that was severed to come back": func() bool { return firstLink(a, healed).ID != severed && firstLink(a, healed).State == agent.Attached },
		"the probe of another to be attached":    func() bool { return firstLink(a, comes).State == agent.Attached },
	} {
		world.Until(t, what, 10*time.Second, done)
	}
	if !isMaking(a, hangs) {
		t.Errorf("they waited for the probe of another tenant: %+v", world.StatusOf(a, "hangs"))
	}
	let()
	world.Must(t, w.Accept(a))
	if l := firstLink(a, hangs); l.State != agent.Attached || world.Runs(t, l.ID) == 0 {
		t.Errorf("in the end the probe is %+v", l)
	}
}

// TestALinkThatNobodyWantsAnyMoreIsClosed withdraws an application whose probe the kernel has not
// made, and the probes that wait for that one. It is not called unloaded before the kernel
// answered, and nothing of it runs then.
func TestALinkThatNobodyWantsAnyMoreIsClosed(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, counts := observed(w, t)
	many := world.ManyPlaces(w, 5)
	let, asked := a.HoldLinks(many.UID)
	t.Cleanup(let)
	w.Give(a, many)
	world.Until(t, "the kernel to be asked for a probe", time.Minute, func() bool { return isMaking(a, many) })
	w.Give(a, w.Tombstone(many))
	world.Until(t, "it to be withdrawn", time.Minute, func() bool { return world.StatusOf(a, "many").Conditions[0].Reason == "Unloading" })
	if c := world.StatusOf(a, "many").Conditions[0]; !strings.Contains(c.Message, "as soon as the kernel has made it") {
		t.Errorf("while the kernel makes a probe: %+v", c)
	}
	let()
	world.Must(t, w.Accept(a))
	if !isUnloaded(a, many) {
		t.Errorf("in the end: %+v", world.StatusOf(a, "many"))
	}
	w.LeavesNothing()
	if n := counts()[`skep_agent_attach_duration_seconds{hook="uprobe",result="ok"}`]; n != 0 {
		t.Errorf("%v links count as attached", n)
	}
	if n := openLinks(t); n != 0 || asked.Load() != 1 {
		t.Errorf("%d links run, and the kernel was asked for %d; want none and the one that it could not give back", n, asked.Load())
	}
}

// TestALinkOfAnOlderVersionIsNotTaken has a newer version come while the kernel makes the probe of
// the older one.
func TestALinkOfAnOlderVersionIsNotTaken(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	p, _ := inFile(w, "changes")
	let, _ := a.HoldLinks(p.UID)
	t.Cleanup(let)
	w.Give(a, p)
	world.Until(t, "the kernel to be asked for the probe", time.Minute, func() bool { return isMaking(a, p) })
	newer := p
	w.Serial++
	newer.Serial, newer.Variables = w.Serial, world.Versioned("2")
	w.Give(a, newer)
	world.Until(t, "the newer version to be loaded", time.Minute, func() bool { return world.StatusOf(a, "changes").Serial == newer.Serial && isMaking(a, newer) })
	let()
	world.Must(t, w.Accept(a))
	program, l := world.One(t, a)
	if l.State != agent.Attached || uint32(world.Runs(t, l.ID)) != program.ID {
		t.Errorf("link %+v, want one of program %d", l, program.ID)
	}
	world.Unloads(t, w, a, l.ID)
}

// TestALinkThatIsNotMadeInTimeIsAnError has a minute go by.
func TestALinkThatIsNotMadeInTimeIsAnError(t *testing.T) {
	need.Kernel(t)
	w, now := world.New(t), world.NewClock()
	o := w.Options()
	o.Clock = now.Now
	a := w.StartWith(o)
	p, path := inFile(w, "hangs")
	let, _ := a.HoldLinks(p.UID)
	t.Cleanup(let)
	w.Give(a, p)
	world.Until(t, "the kernel to be asked for the probe", time.Minute, func() bool { return isMaking(a, p) })
	now.Forward(2 * time.Minute)
	err := w.Accept(a)
	for _, part := range []string{"attach on_uprobe to uprobe", path, "memory lock of each process", "for a minute", "name another file"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error is %v, want %q in it", err, part)
		}
	}
	if l := firstLink(a, p); l.State != agent.Failed {
		t.Errorf("its link is %+v", l)
	}
	let()
	world.Until(t, "the probe to be attached", time.Minute, func() bool { return firstLink(a, p).State == agent.Attached })
	world.Must(t, w.Accept(a))
}

// TestALinkThatFailedIsReportedSoWhileItIsTriedAgain has the kernel take long for the second try.
func TestALinkThatFailedIsReportedSoWhileItIsTriedAgain(t *testing.T) {
	need.Kernel(t)
	w, now := world.New(t), world.NewClock()
	o := w.Options()
	o.Clock = now.Now
	a := w.Idle(o)
	p := world.Version(w, "1", v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "nope/nope"})
	w.Give(a, p)
	failed := func() bool {
		a.Reconcile(t.Context())
		return world.StatusOf(a, "hooks").Conditions[0].Reason == "Failed"
	}
	world.Until(t, "the link to fail", time.Minute, failed)
	let, asked := a.HoldLinks(p.UID)
	t.Cleanup(let)
	now.Forward(5 * time.Second)
	for asked.Load() == 0 {
		if !failed() {
			t.Errorf("while it is tried again: %+v", world.StatusOf(a, "hooks").Conditions[0])
		}
	}
	if !failed() {
		t.Errorf("while the kernel is asked again: %+v", world.StatusOf(a, "hooks").Conditions[0])
	}
}

// TestAnAgentThatStopsLeavesNoLinkThatIsBeingMade stops an agent while the kernel makes a probe.
func TestAnAgentThatStopsLeavesNoLinkThatIsBeingMade(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, err := agent.New(w.Options())
	world.Must(t, err)
	many := world.ManyPlaces(w, 5)
	let, _ := a.HoldLinks(many.UID)
	t.Cleanup(let)
	w.Give(a, many)
	world.Until(t, "the kernel to be asked for a probe", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return isMaking(a, many)
	})
	stopped := make(chan error)
	go func() { stopped <- a.Close() }()
	let()
	world.Must(t, <-stopped)
	if pins, running := world.LinkPins(w, many.UID), openLinks(t); pins+running != 0 {
		t.Errorf("%d links are pinned, and %d run", pins, running)
	}
	again, _ := w.Start()
	world.Must(t, w.Accept(again))
	if n, running := world.Links(again, "many"), openLinks(t); n != 5 || running != 5 {
		t.Errorf("%d links are attached after the next start, and %d run", n, running)
	}
}

// isMaking reports whether an application waits for a link that the kernel makes.
func isMaking(a *agent.Agent, p intent.Payload) bool {
	s := world.StatusOf(a, p.Application.Name)
	return s != nil && s.Conditions[0].Reason == "Queued" && strings.Contains(s.Conditions[0].Message, "the kernel makes")
}

// firstLink is the first link of an application.
func firstLink(a *agent.Agent, p intent.Payload) agent.LinkStatus {
	for _, s := range a.Status() {
		if s.UID == p.UID && len(s.Programs) > 0 && len(s.Programs[0].Links) > 0 {
			return s.Programs[0].Links[0]
		}
	}
	return agent.LinkStatus{}
}

// openLinks counts the links that this process has open: other processes have theirs.
func openLinks(t *testing.T) (n int) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	world.Must(t, err)
	for _, info := range infos {
		if text, err := os.ReadFile(info); err == nil && strings.Contains(string(text), "link_id:") {
			n++
		}
	}
	return n
}
