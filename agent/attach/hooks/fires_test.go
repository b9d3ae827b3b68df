package hooks_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
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
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/need"
)

// lastRun returns the version of hooks.o whose program ran last; 0 before any did.
func lastRun(t *testing.T, a *agent.Agent) uint32 {
	t.Helper()
	bss := world.Globals(t, a.Status()[0].Programs[0].ID)
	defer func() { _ = bss.Close() }()
	value, err := bss.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint32(value)
}

// fires has an agent attach one version of the hook's program and then the next, and
// causes an event until each of them ran.
func fires(t *testing.T, at v1alpha1.Attachment, cause func()) *agent.Agent {
	t.Helper()
	need.Kernel(t)
	world.NeedHook(t, at.Hook)
	w := world.New(t)
	a, _ := w.Start()
	for _, version := range []uint32{1, 2} {
		if err := w.Accept(a, world.Version(w, fmt.Sprint(version), at)); err != nil {
			t.Fatal(err)
		}
		world.Until(t, fmt.Sprintf("version %d to run", version), 10*time.Second, func() bool {
			cause()
			return lastRun(t, a) == version
		})
	}
	return a
}

// testRun runs a program that returns 0 once for a packet, by BPF_PROG_TEST_RUN.
func testRun(t *testing.T) error {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	_, _, err = p.Test(make([]byte, 14))
	return err
}

func TestAFlowDissectorFires(t *testing.T) {
	need.Kernel(t)
	path := world.Namespace(t)
	world.Within(t, path, events.LoopbackUp)
	fires(t, v1alpha1.Attachment{Hook: "flow_dissector", NetworkNamespace: path}, func() { world.Within(t, path, func() error { return world.SendFrame(1) }) })
}

// TestAFlowDissectorDisplacesNone has another program at the place before the agent.
func TestAFlowDissectorDisplacesNone(t *testing.T) {
	need.Kernel(t)
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.FlowDissector, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for sentence, c := range map[string]struct {
		attach func(ns int) (io.Closer, error)
		want   string
	}{
		"by a link": {
			func(ns int) (io.Closer, error) { return link.AttachNetNs(ns, other) },
			"another program has the place of flow_dissector in the network namespace, which takes one program: program ",
		},
		"without a link": {func(int) (io.Closer, error) {
			// In the namespace of the thread, which is the target.
			return nil, link.RawAttachProgram(link.RawAttachProgramOptions{Program: other, Attach: ebpf.AttachFlowDissector})
		}, "attached without a link"},
	} {
		t.Run(sentence, func(t *testing.T) {
			path := world.Namespace(t)
			var placed io.Closer
			world.Within(t, path, func() (err error) {
				ns, err := os.Open(path)
				if err != nil {
					return err
				}
				placed, err = c.attach(int(ns.Fd()))
				return errors.Join(err, ns.Close())
			})
			w := world.New(t)
			a, _ := w.Start()
			err := w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{Hook: "flow_dissector", NetworkNamespace: path}))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the agent says %v, not %q", err, c.want)
			}
			if placed != nil {
				if err := placed.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestNetkitFires(t *testing.T) {
	need.Kernel(t)
	for name, sender := range map[string]string{"netkit/primary": "nk0", "netkit/peer": "nk1"} {
		t.Run(name, func(t *testing.T) {
			world.NeedHook(t, name)
			h, _ := hook.Lookup(name)
			world.Pair(t, h, "nk0", "nk1")
			fires(t, world.On(name, "nk0")[0], func() {
				if err := world.SendFrame(world.Index(t, sender)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestNetkitIsRefusedWhereTheDeviceIsNoPrimaryOne(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "netkit/primary")
	h, _ := hook.Lookup("netkit/primary")
	world.Pair(t, h, "nk0", "nk1")
	world.Veth(t, "nv0", "nv1")
	for name, want := range map[string]string{"nk1": "interface nk1 is the peer of a netkit pair", "nv0": "interface nv0 is no netkit device"} {
		w := world.New(t)
		a, _ := w.Start()
		if err := w.Accept(a, world.Version(w, "1", world.On("netkit/primary", name)[0])); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the agent says %v, not %q", err, want)
		}
	}
}

// TestProgramsOfNetkitRunByPriority has the later of two applications run first.
func TestProgramsOfNetkitRunByPriority(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "netkit/primary")
	h, _ := hook.Lookup("netkit/primary")
	world.Pair(t, h, "nk0", "nk1")
	w := world.New(t)
	a, _ := w.Start()
	var links []link.ID
	for i, priority := range []int32{500, 5} {
		at := world.On("netkit/primary", "nk0")[0]
		at.Priority = &priority
		p := world.Version(w, "1", at)
		p.UID, p.Application.Name = fmt.Sprint("uid-", i), fmt.Sprint("nk-", i)
		if err := w.Accept(a, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range a.Status() {
		links = append(links, link.ID(s.Programs[0].Links[0].ID))
	}
	order, err := attach.Order("netkit/primary", plan.Device{Index: world.Index(t, "nk0")}, nil)
	var got []link.ID
	for _, p := range order {
		got = append(got, p.Link)
	}
	if want := []link.ID{links[1], links[0]}; err != nil || !slices.Equal(got, want) {
		t.Errorf("links %v run, %v; want %v", got, err, want)
	}
}

// sendLocally sends a UDP packet to this host.
func sendLocally(family int, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Sendto(fd, []byte("x"), 0, to)
}

func TestNetfilterFires(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		n      v1alpha1.Netfilter
		family int
		to     unix.Sockaddr
	}{
		"IPv4 that comes in": {
			v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: -5}, unix.AF_INET, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}},
		},
		"IPv4 that goes out": {
			v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalOut"}, unix.AF_INET, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}},
		},
		"IPv4 before routing": {
			v1alpha1.Netfilter{Family: "IPv4", Hook: "PreRouting", Priority: 2147483646}, unix.AF_INET, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}},
		},
		"IPv6 behind routing, and whole": {
			v1alpha1.Netfilter{Family: "IPv6", Hook: "PostRouting", Defragment: true}, unix.AF_INET6, &unix.SockaddrInet6{Port: 9, Addr: [16]byte{15: 1}},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			path := world.Namespace(t)
			world.Within(t, path, events.LoopbackUp)
			a := fires(t, v1alpha1.Attachment{Hook: "netfilter", NetworkNamespace: path, Netfilter: &c.n}, func() {
				world.Within(t, path, func() error { return sendLocally(c.family, c.to) })
			})
			if _, l := world.One(t, a); !strings.HasPrefix(l.Target, fmt.Sprintf("%s %s priority %d in /", c.n.Family, c.n.Hook, c.n.Priority)) {
				t.Errorf("link = %+v", l)
			}
		})
	}
}

func TestAPriorityThatAnotherProgramHasIsSaid(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "netfilter")
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	path := world.Namespace(t)
	var taken link.Link
	world.Within(t, path, func() (err error) {
		taken, err = link.AttachNetfilter(link.NetfilterOptions{
			Program: other, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetLocalIn, Priority: 7,
		})
		return err
	})
	defer func() { _ = taken.Close() }()
	w := world.New(t)
	a, _ := w.Start()
	err = w.Accept(a, world.Version(w, "1", v1alpha1.Attachment{
		Hook: "netfilter", NetworkNamespace: path, Netfilter: &v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: 7},
	}))
	if want := "another program or rule has priority 7 at LocalIn of IPv4; choose another priority"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agent says %v, not %q", err, want)
	}
}

func TestAWritableTracepointFires(t *testing.T) {
	fires(t, v1alpha1.Attachment{Hook: "raw_tp.w", Tracepoint: "bpf_test_finish"}, func() {
		if err := testRun(t); err != nil {
			t.Error(err)
		}
	})
}

// writer is an intent for a program that changes the result of test runs of this process.
func writer(w *world.World, tracepoint string) intent.Payload {
	p := world.Version(w, "1", v1alpha1.Attachment{Hook: "raw_tp.w", Tracepoint: tracepoint})
	p.Variables["changes_for"] = apiextensionsv1.JSON{Raw: fmt.Append(nil, os.Getpid())}
	return p
}

func TestAProgramWritesToAWritableTracepoint(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, writer(w, "bpf_test_finish")); err != nil {
		t.Fatal(err)
	}
	if err := testRun(t); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the test run ends with %v; the program made it ENODATA", err)
	}
}

func TestATracepointThatIsNotWritableIsUnsupported(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	err := w.Accept(a, writer(w, "sys_enter"))
	want := "this node's kernel lets no program write to tracepoint sys_enter, or fewer bytes than this one accesses; name a writable tracepoint"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the agent says %v, not %q", err, want)
	}
}
