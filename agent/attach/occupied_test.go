package attach_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// theirs is a program that is not Skep's; it returns 1.
func theirs(t *testing.T, of ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	spec := &ebpf.ProgramSpec{Name: "theirs", Type: of, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}}
	if of == ebpf.Netfilter {
		spec.AttachType = ebpf.AttachNetfilter
	}
	p, err := ebpf.NewProgram(spec)
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// addVeth makes an interface in the network namespace of the thread.
func addVeth(t *testing.T, name string) int {
	t.Helper()
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	return l.Index
}

// another makes a network namespace with a file, and calls do in it.
func another(t *testing.T, do func()) (path string, id uint64) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		if err = errors.Join(unix.Unshare(unix.CLONE_NEWNET), unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")); err == nil {
			do()
		}
		if back := errors.Join(unix.Setns(int(own.Fd()), unix.CLONE_NEWNET), own.Close()); back != nil {
			err = errors.Join(err, back)
		} else {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path, inode(t, path)
}

// withoutLink attaches to an interface as ip-link(8) does.
func withoutLink(t *testing.T, name string, p *ebpf.Program, mode int) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetXdpFdWithFlags(l, p.FD(), mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// byLink attaches to an interface by a link, which the test holds.
func byLink(t *testing.T, name string, p *ebpf.Program) link.Link {
	t.Helper()
	device, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: device.Index, Flags: link.XDPGenericMode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// attachesOnce the commands of its message have been run.
func attachesOnce(t *testing.T, r attach.Request, commands []string, want ...string) {
	t.Helper()
	var l pins.Held
	var err error
	// A busy machine may not have shown who holds it in the time of a look, which is kept for ten seconds.
	await.True(t, "a look at who holds the place", time.Minute, func() bool {
		if l, err = attach.To(r); err == nil {
			_ = l.Close()
			t.Fatal("it displaced another program")
		}
		return !strings.Contains(err.Error(), "no process or pin that this agent sees")
	})
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
	recommended.Run(t, err.Error(), commands...)
	if l, err = attach.To(r); err != nil {
		t.Fatalf("after that: %v", err)
	}
	_ = l.Close()
}

func TestWhoeverHoldsXDPIsNamedWithACommandThatDetachesIt(t *testing.T) {
	need.Kernel(t)
	self := fmt.Sprintf("process %d (", os.Getpid())
	for sentence, c := range map[string]struct {
		hold    func(t *testing.T, p *ebpf.Program)
		command string
		want    []string
	}{
		"a link of a process": {func(t *testing.T, p *ebpf.Program) { byLink(t, "oc0", p) }, "bpftool link", []string{"oc0 holds", `("theirs")`, self}},
		"a pinned link": {func(t *testing.T, p *ebpf.Program) {
			l := byLink(t, "oc0", p)
			if err := errors.Join(l.Pin("/sys/fs/bpf/theirs"), l.Close()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove("/sys/fs/bpf/theirs") })
		}, "bpftool link", []string{"the pin /sys/fs/bpf/theirs"}},
		"ip-link in the driver": {
			func(t *testing.T, p *ebpf.Program) { withoutLink(t, "oc0", p, unix.XDP_FLAGS_DRV_MODE) }, "ip link set", []string{"without a link"},
		},
		"ip-link, generic": {
			func(t *testing.T, p *ebpf.Program) { withoutLink(t, "oc0", p, unix.XDP_FLAGS_SKB_MODE) }, "ip link set", []string{"without a link"},
		},
		"its bridge": {func(t *testing.T, p *ebpf.Program) {
			above(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "up0"}})
			withoutLink(t, "up0", p, unix.XDP_FLAGS_SKB_MODE)
		}, "ip link set", []string{"up0, which is above oc0, holds"}},
		"a device made of it, by a link": {func(t *testing.T, p *ebpf.Program) {
			above(t, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, Mode: netlink.MACVLAN_MODE_PRIVATE})
			byLink(t, "up0", p)
		}, "bpftool link", []string{"up0, which is above oc0, holds", self}},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := attach.Request{Program: theirs(t, ebpf.XDP), Attachment: plan.Attachment{Program: "ours", Hook: "xdp", Target: plan.Target{Interface: "oc0"}}}
			r.Attachment.Ifindex = addVeth(t, "oc0")
			c.hold(t, theirs(t, ebpf.XDP))
			attachesOnce(t, r, []string{c.command}, c.want...)
		})
	}
}

// above puts a device above oc0.
func above(t *testing.T, l netlink.Link) {
	t.Helper()
	below, err := netlink.LinkByName("oc0")
	if err != nil {
		t.Fatal(err)
	}
	_, isBridge := l.(*netlink.Bridge)
	if !isBridge {
		l.Attrs().ParentIndex = below.Attrs().Index
	}
	if err := netlink.LinkAdd(l); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("SKIPPED: this kernel has no devices of kind %s", l.Type())
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	if isBridge {
		if err := netlink.LinkSetMasterByIndex(below, l.Attrs().Index); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoeverHoldsXDPOfAPodIsNamedWithACommandThatDetachesIt(t *testing.T) {
	need.Kernel(t)
	p, index := theirs(t, ebpf.XDP), 0
	path, id := another(t, func() {
		index = addVeth(t, "oc0")
		withoutLink(t, "oc0", p, unix.XDP_FLAGS_SKB_MODE)
	})
	pods := netns.NewTable()
	pods.Renew([]netns.Namespace{{ID: id, In: "pod team-a/web", Open: func() (*os.File, error) { return os.Open(path) }}}, nil)
	defer pods.Close()
	r := attach.Request{Program: p, Host: attach.Host{Namespaces: pods},
		Attachment: plan.Attachment{Program: "ours", Hook: "xdp", Target: plan.Target{Interface: "oc0", NetnsID: id, Ifindex: index}}}
	attachesOnce(t, r, []string{"nsenter --net=", "ip link set"}, "nsenter --net="+path)
}

func TestWhoeverHasThePlaceOfANetworkNamespaceIsNamedWithACommandThatDetachesIt(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		hold     func(path string, p *ebpf.Program) (io.Closer, error)
		commands []string
		want     string
	}{
		"by a link": {func(path string, p *ebpf.Program) (io.Closer, error) {
			ns, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer func() { _ = ns.Close() }()
			return link.AttachNetNs(int(ns.Fd()), p)
		}, []string{"bpftool link"}, fmt.Sprintf("process %d (", os.Getpid())},
		"without a link": {func(_ string, p *ebpf.Program) (io.Closer, error) {
			// In the network namespace of the thread.
			return nil, link.RawAttachProgram(link.RawAttachProgramOptions{Program: p, Attach: ebpf.AttachFlowDissector})
		}, []string{"nsenter --net=", "bpftool prog"}, "nsenter --net="},
	} {
		t.Run(sentence, func(t *testing.T) {
			p := theirs(t, ebpf.FlowDissector)
			var held io.Closer
			var err error
			path, _ := another(t, func() { held, err = c.hold("/proc/thread-self/ns/net", p) })
			if err != nil {
				t.Fatal(err)
			}
			if held != nil {
				defer func() { _ = held.Close() }()
			}
			r := attach.Request{Program: p, Attachment: plan.Attachment{Program: "ours", Hook: "flow_dissector", Target: plan.Target{NetworkNamespace: path}}}
			attachesOnce(t, r, c.commands, c.want, `("theirs")`)
		})
	}
}

// TestTheInventoryListsWhatExcludesAProgram where the message names no holder.
func TestTheInventoryListsWhatExcludesAProgram(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		of      ebpf.ProgramType
		at      plan.Attachment
		exclude func(t *testing.T, index int)
	}{
		"XDP above, elsewhere":    {ebpf.XDP, plan.Attachment{Hook: "xdp", Target: plan.Target{Interface: "oc0"}}, aboveElsewhere},
		"as many as there may be": {ebpf.SchedCLS, plan.Attachment{Hook: "tcx/ingress", Target: plan.Target{Interface: "oc0"}}, fullTCX},
	} {
		t.Run(sentence, func(t *testing.T) {
			c.at.Program, c.at.Ifindex = "ours", addVeth(t, "oc0")
			c.exclude(t, c.at.Ifindex)
			l, err := attach.To(attach.Request{Program: theirs(t, c.of), Attachment: c.at})
			if err == nil {
				_ = l.Close()
				t.Fatal("it attached")
			}
			if printed := recommended.Run(t, err.Error(), "skep inventory"); printed != "" && !strings.Contains(printed, "theirs") {
				t.Errorf("%v; it lists\n%s", err, printed)
			}
		})
	}
}

// aboveElsewhere has a device above oc0, in another network namespace, run XDP.
func aboveElsewhere(t *testing.T, _ int) {
	above(t, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, Mode: netlink.MACVLAN_MODE_PRIVATE})
	byLink(t, "up0", theirs(t, ebpf.XDP))
	path, _ := another(t, func() {})
	ns, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	up, err := netlink.LinkByName("up0")
	if err == nil {
		err = netlink.LinkSetNsFd(up, int(ns.Fd()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fullTCX attaches as many programs as an interface takes.
func fullTCX(t *testing.T, index int) {
	for {
		l, err := link.AttachTCX(link.TCXOptions{Program: theirs(t, ebpf.SchedCLS), Interface: index, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, unix.ERANGE) {
			return
		}
		if errors.Is(err, ebpf.ErrNotSupported) {
			t.Skipf("SKIPPED: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}

// TestOffloadsAreTurnedOffByTheCommandOfTheMessage: at this MTU the driver runs only programs with frags.
func TestOffloadsAreTurnedOffByTheCommandOfTheMessage(t *testing.T) {
	need.Kernel(t)
	r := attach.Request{Program: theirs(t, ebpf.XDP),
		Attachment: plan.Attachment{Program: "ours", Hook: "xdp", XDPMode: v1alpha1.XDPNative, Target: plan.Target{Interface: "oc0"}}}
	r.Attachment.Ifindex = addVeth(t, "oc0")
	for _, name := range []string{"oc0", "oc0p"} {
		l, err := netlink.LinkByName(name)
		if err = errors.Join(err, netlink.LinkSetMTU(l, 9000)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := attach.To(r)
	if err == nil {
		_ = l.Close()
		t.Fatal("the driver takes the program")
	}
	recommended.Run(t, err.Error(), "ethtool -K")
}

func TestNetworkNamespacesAreListedByTheCommandOfTheMessage(t *testing.T) {
	need.Kernel(t)
	_, err := resolve(plan.Attachment{Hook: "sk_lookup", Target: plan.Target{NetworkNamespace: "/proc/self/exe"}}, attach.Host{})
	if err == nil {
		t.Fatal("a program is taken for a network namespace")
	}
	recommended.Run(t, err.Error(), "ip netns list")
}

// TestThePrioritiesOfNetfilterAreListedByTheCommandsOfTheMessage asks for one that is taken.
func TestThePrioritiesOfNetfilterAreListedByTheCommandsOfTheMessage(t *testing.T) {
	need.Kernel(t)
	p := theirs(t, ebpf.Netfilter)
	r := attach.Request{Program: p, Attachment: plan.Attachment{Program: "ours", Hook: "netfilter",
		Target: plan.Target{Netfilter: v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: 100}}}}
	first, err := attach.To(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err = attach.To(r); err == nil {
		t.Fatal("the priority is taken, and it attached")
	}
	recommended.Run(t, err.Error(), "nft list hooks", "skep inventory")
}

func TestAHierarchyIsMountedByTheCommandOfTheMessage(t *testing.T) {
	need.Kernel(t)
	_, err := resolve(plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/"}}, attach.Host{})
	if err == nil {
		t.Fatal("it found a cgroup without a hierarchy")
	}
	recommended.Run(t, err.Error(), "mkdir -p", "mount -t")
	t.Cleanup(func() { _ = errors.Join(unix.Unmount("/run/cgroup2", unix.MNT_DETACH), os.Remove("/run/cgroup2")) })
	if _, err := resolve(plan.Attachment{Hook: "cgroup/bind4", Target: plan.Target{Cgroup: "/"}}, attach.Host{CgroupRoot: "/run/cgroup2"}); err != nil {
		t.Errorf("after that: %v", err)
	}
}
