package hooks_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// secondPath names the same network namespace by another path.
func secondPath(t *testing.T, path string) string {
	t.Helper()
	other := filepath.Join(t.TempDir(), "green")
	if err := errors.Join(os.WriteFile(other, nil, 0o600), unix.Mount(path, other, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(other, unix.MNT_DETACH) })
	return other
}

// exclusively is an attachment of a hook whose place takes one program.
func exclusively(name, path string) v1alpha1.Attachment {
	at := v1alpha1.Attachment{Hook: name, NetworkNamespace: path}
	if name == "netfilter" {
		at.Netfilter = &v1alpha1.Netfilter{Family: "IPv6", Hook: "LocalIn"}
	}
	return at
}

// TestAnAttachmentChangesInItsExclusivePlace changes what the identity of an attachment
// follows from, and not its place, which takes one program.
func TestAnAttachmentChangesInItsExclusivePlace(t *testing.T) {
	need.Kernel(t)
	for _, name := range []string{"netfilter", "flow_dissector"} {
		for sentence, change := range map[string]func(*testing.T, *v1alpha1.Program){
			"another path of the namespace": func(t *testing.T, p *v1alpha1.Program) {
				p.Attach[0].NetworkNamespace = secondPath(t, p.Attach[0].NetworkNamespace)
			},
			"another function": func(_ *testing.T, p *v1alpha1.Program) { p.Name = "other_" + name },
			"whole packets, where it is netfilter's": func(_ *testing.T, p *v1alpha1.Program) {
				p.Name = "other_" + name
				if n := p.Attach[0].Netfilter; n != nil {
					p.Name, n.Defragment = "on_netfilter", true
				}
			},
		} {
			t.Run(name+": "+sentence, func(t *testing.T) {
				world.NeedHook(t, name)
				path := world.Namespace(t)
				world.Within(t, path, events.LoopbackUp)
				w := world.New(t)
				a, stop := w.Start()
				if err := w.Accept(a, world.Version(w, "1", exclusively(name, path))); err != nil {
					t.Fatal(err)
				}
				_, before := world.One(t, a)
				p := world.Version(w, "2", exclusively(name, path))
				change(t, &p.Programs[0])
				if err := w.Accept(a, p); err != nil {
					t.Fatal(err)
				}
				program, after := world.One(t, a)
				if after.Pin == before.Pin || uint32(world.Runs(t, after.ID)) != program.ID {
					t.Errorf("link %+v became %+v, which runs %d and not %d", before, after, world.Runs(t, after.ID), program.ID)
				}
				if kept := after.ID == before.ID; kept != (name == "flow_dissector") {
					t.Errorf("link %d became %d", before.ID, after.ID)
				}
				world.Until(t, "the new version to run", 10*time.Second, func() bool {
					world.Within(t, path, func() error {
						return errors.Join(world.SendFrame(1), sendLocally(unix.AF_INET6, &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}}))
					})
					return lastRun(t, a) == 2
				})
				world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
				stop()
				a, _ = w.Start()
				if err := w.Accept(a); err != nil {
					t.Fatal(err)
				}
				if _, again := world.One(t, a); again.ID != after.ID {
					t.Errorf("the restarted agent has link %d and not %d", again.ID, after.ID)
				}
				world.Unloads(t, w, a, after.ID)
			})
		}
	}
}

// TestAnExclusivePlaceOfAnotherApplicationIsSaid asks for one place twice: for two
// applications, and for two programs of one.
func TestAnExclusivePlaceOfAnotherApplicationIsSaid(t *testing.T) {
	need.Kernel(t)
	for _, name := range []string{"netfilter", "flow_dissector"} {
		t.Run(name, func(t *testing.T) {
			world.NeedHook(t, name)
			path := world.Namespace(t)
			w := world.New(t)
			a, _ := w.Start()
			if err := w.Accept(a, world.Version(w, "1", exclusively(name, path))); err != nil {
				t.Fatal(err)
			}
			p := world.Version(w, "1", exclusively(name, path))
			p.UID, p.Application.Name = "uid-late", "late"
			if err := w.Accept(a, p); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("program on_%s of application hooks has ", name)) {
				t.Errorf("the agent says %v", err)
			}
			w.Serial++
			p = intent.Payload{Application: p.Application, UID: p.UID, Serial: w.Serial, Tombstone: true, Reason: "test"}
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
			both := world.Version(w, "1", exclusively(name, path))
			both.Programs = append(both.Programs, v1alpha1.Program{Name: "other_" + name, Attach: []v1alpha1.Attachment{exclusively(name, secondPath(t, path))}})
			if err := w.Accept(a, both); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("program on_%s of application hooks has ", name)) {
				t.Errorf("the agent says %v of two programs of one application", err)
			}
			turns(t, a, 3)
			if l := a.Status()[0].Programs[0].Links; len(l) != 1 || l[0].State != agent.Attached || world.Runs(t, l[0].ID) == 0 {
				t.Errorf("the first program has the links %+v", l)
			}
		})
	}
}

// dropper is a version of a program that drops what comes in.
func dropper(w *world.World, n int, path string) intent.Payload {
	p := world.Version(w, fmt.Sprint(n), v1alpha1.Attachment{Hook: "netfilter", NetworkNamespace: path, Netfilter: &v1alpha1.Netfilter{Family: "IPv4",
		Hook: "LocalIn"}})
	p.Variables["netfilter_verdict"] = apiextensionsv1.JSON{Raw: []byte("0")}
	return p
}

// stream is packets that are sent to a socket, one after the other, until stop.
type stream struct {
	sent int
	// received reports whether one came in.
	received func() bool
	stop     func()
}

// sends sends packets in a network namespace, after one that comes in.
func sends(t *testing.T, path string) *stream {
	t.Helper()
	world.Within(t, path, events.LoopbackUp)
	to := &unix.SockaddrInet4{Port: 999, Addr: [4]byte{127, 0, 0, 1}}
	var receiver int
	world.Within(t, path, func() (err error) {
		receiver, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return errors.Join(err, unix.Bind(receiver, to))
	})
	t.Cleanup(func() { _ = unix.Close(receiver) })
	s := &stream{received: func() bool {
		n, _, err := unix.Recvfrom(receiver, make([]byte, 8), 0)
		return err == nil && n > 0
	}}
	if world.Within(t, path, func() error { return sendLocally(unix.AF_INET, to) }); !s.received() {
		t.Fatal("no packet comes in before there is a program")
	}
	s.stop = func() {}
	return s
}

// begin sends until stop.
func (s *stream) begin(t *testing.T, path string) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		world.Within(t, path, func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := sendLocally(unix.AF_INET, &unix.SockaddrInet4{Port: 999, Addr: [4]byte{127, 0, 0, 1}}); err != nil && !errors.Is(err, unix.EPERM) {
					return err
				}
				s.sent++
			}
		})
	}()
	s.stop = func() {
		close(stop)
		<-done
	}
}

// dropping is a world whose agent drops by netfilter, in version 1, what comes into the network
// namespace at path, and the packets to send there.
func dropping(t *testing.T) (w *world.World, a *agent.Agent, stop func(), path string, packets *stream) {
	t.Helper()
	need.Kernel(t)
	world.NeedHook(t, "netfilter")
	path = world.Namespace(t)
	packets, w = sends(t, path), world.New(t)
	a, stop = w.Start()
	w.Must(a, dropper(w, 1, path))
	return w, a, stop, path, packets
}

// TestAnUpdateOfNetfilterMissesNoPacket has every version drop what comes in.
func TestAnUpdateOfNetfilterMissesNoPacket(t *testing.T) {
	w, a, _, path, packets := dropping(t)
	packets.begin(t, path)
	for n := range 10 {
		p := dropper(w, n+2, path)
		p.Programs[0].Name = []string{"on_netfilter", "other_netfilter"}[n/2%2]
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
	}
	packets.stop()
	if packets.received() || packets.sent < 100 {
		t.Errorf("of %d packets that were sent, one came in while the program was updated", packets.sent)
	}
}

// TestTheOldVersionOfNetfilterRunsOnWhereItsPinCannotBeReplaced puts a folder with
// something in it where the new pin is made.
func TestTheOldVersionOfNetfilterRunsOnWhereItsPinCannotBeReplaced(t *testing.T) {
	w, a, _, path, packets := dropping(t)
	program, before := world.One(t, a)
	obstacle := filepath.Join(filepath.Dir(before.Pin), "+new-"+filepath.Base(before.Pin))
	if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	packets.begin(t, path)
	if err := w.Accept(a, dropper(w, 2, path)); err == nil || !strings.Contains(err.Error(), "pin") {
		t.Errorf("the agent says %v", err)
	}
	turns(t, a, 3)
	if packets.stop(); packets.received() || packets.sent < 100 {
		t.Errorf("of %d packets that were sent, one came in while the program could not be updated", packets.sent)
	}
	if got := world.Runs(t, before.ID); uint32(got) != program.ID {
		t.Errorf("link %d runs %d, and no more the old program %d", before.ID, got, program.ID)
	}
	if err := errors.Join(os.Remove(filepath.Join(obstacle, "x")), os.Remove(obstacle)); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the new version to run", time.Minute, func() bool { return a.Status()[0].Error == "" && lastRun(t, a) == 2 || sendOne(t, path) })
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// sendOne sends a packet, and returns false.
func sendOne(t *testing.T, path string) bool {
	t.Helper()
	world.Within(t, path, func() error {
		if err := sendLocally(unix.AF_INET, &unix.SockaddrInet4{Port: 999, Addr: [4]byte{127, 0, 0, 1}}); !errors.Is(err, unix.EPERM) {
			return err
		}
		return nil
	})
	return false
}

// thief takes a priority of netfilter as soon as it is free.
type thief struct {
	closed chan struct{}
	stop   chan struct{}
}

// steals has another program wait for the place of ours.
func steals(t *testing.T, path string) *thief {
	t.Helper()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	th := &thief{closed: make(chan struct{}), stop: make(chan struct{})}
	go func() {
		defer close(th.closed)
		defer func() { _ = other.Close() }()
		world.Within(t, path, func() error {
			for {
				l, err := link.AttachNetfilter(link.NetfilterOptions{Program: other, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetLocalIn})
				if err == nil {
					<-th.stop
					return errors.Join(l.Detach(), l.Close())
				}
				select {
				case <-th.stop:
					return nil
				default:
				}
			}
		})
	}()
	return th
}

// TestTheOldVersionOfNetfilterRunsOnWhereItsPlaceIsTaken has another program take the
// place in the moment in which the old version has left it.
func TestTheOldVersionOfNetfilterRunsOnWhereItsPlaceIsTaken(t *testing.T) {
	w, a, stop, path, packets := dropping(t)
	packets.begin(t, path)
	other, n := steals(t, path), 2
	for deadline := time.Now().Add(time.Minute); w.Accept(a, dropper(w, n, path)) == nil; n++ {
		if time.Now().After(deadline) {
			t.Skip("SKIPPED: the other program never was the first")
		}
	}
	if last := lastRun(t, a); last != uint32(n-1) {
		t.Errorf("version %d runs, and the last one with a place is %d", last, n-1)
	}
	// What stands in runs on without the agent, too.
	stop()
	a, _ = w.Start()
	if err := w.Accept(a); err == nil || !strings.Contains(err.Error(), "another program or rule has priority 0") {
		t.Errorf("the restarted agent says %v", err)
	}
	if packets.received() {
		t.Error("a packet came in")
	}
	close(other.stop)
	<-other.closed
	world.Until(t, "the new version to run", time.Minute, func() bool {
		s := a.Status()[0]
		return s.Error == "" && len(s.Programs) == 1 && lastRun(t, a) == uint32(n)
	})
	if packets.stop(); packets.received() || packets.sent < 100 {
		t.Errorf("of %d packets that were sent, one came in", packets.sent)
	}
	_, l := world.One(t, a)
	held, err := link.NewFromID(link.ID(l.ID))
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("link = %+v", l)
	}
	info, err := held.Info()
	if err := errors.Join(err, held.Close()); err != nil {
		t.Fatal(err)
	}
	if got := info.Netfilter().Priority; got != 0 {
		t.Errorf("the link has priority %d", got)
	}
	world.PinsAreTidy(w, map[string]agent.ApplicationStatus{"hooks": a.Status()[0]})
}

// turns has the agent go round, each time until nothing is on its way.
func turns(t *testing.T, a *agent.Agent, n int) {
	t.Helper()
	for range n {
		a.Reconcile(t.Context())
		world.Until(t, "what is on its way", time.Minute, func() bool {
			return !slices.ContainsFunc(a.Status(), func(s agent.ApplicationStatus) bool {
				return slices.Contains([]string{"Loading", "Fetching", "Queued"}, s.Conditions[0].Reason)
			})
		})
		_ = a.Settled(t.Context())
	}
}
