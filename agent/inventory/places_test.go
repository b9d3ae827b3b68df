package inventory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
)

func TestCgroupsAreNamedByTheirInode(t *testing.T) {
	mount := t.TempDir()
	if err := os.MkdirAll(filepath.Join(mount, "system.slice", "ssh.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(mount, "cgroup.procs"), "")
	c := &cgroups{mount: mount}
	for path, want := range map[string]string{"": "/", "system.slice": "/system.slice", "system.slice/ssh.service": "/system.slice/ssh.service"} {
		id, ok := inodeOf(filepath.Join(mount, path))
		if !ok {
			t.Fatalf("no inode of %s", path)
		}
		if got := c.path(id); got != want {
			t.Errorf("cgroup of %s is %q, want %q", path, got, want)
		}
	}
	if got := c.path(1<<63 + 7); got != "cgroup 9223372036854775815" {
		t.Errorf("a cgroup that is gone is called %q", got)
	}
	if diff := cmp.Diff([]string{"/", "/system.slice", "/system.slice/ssh.service"}, c.paths()); diff != "" {
		t.Errorf("cgroups (-want +got):\n%s", diff)
	}
}

func TestAHostWithoutCgroupsNamesNone(t *testing.T) {
	c := &cgroups{}
	if got := c.path(7); got != "cgroup 7" || len(c.paths()) != 0 {
		t.Errorf("got %q among %v, want a number and none", got, c.paths())
	}
}

func TestCgroupMountIsFound(t *testing.T) {
	for name, tc := range map[string]struct{ mounts, want string }{
		"unified": {"proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "/sys/fs/cgroup"},
		"hybrid":  {"cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\nnone /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "/sys/fs/cgroup/unified"},
		"none":    {"proc /proc proc rw 0 0\n\nbroken\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.Mkdir(filepath.Join(proc, "self"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(proc, "self", "mounts"), tc.mounts)
			if got := findCgroups(proc); got != tc.want {
				t.Errorf("mount is %q, want %q", got, tc.want)
			}
		})
	}
	if got := findCgroups(t.TempDir()); got != "" {
		t.Errorf("mount without /proc is %q", got)
	}
}

func TestNetworkNamespacesAreNamedByTheirInode(t *testing.T) {
	n := &namespaces{proc: "/proc"}
	own, ok := inodeOf("/proc/self/ns/net")
	if !ok {
		t.Skip("SKIPPED: no /proc")
	}
	// The process's own may also have a name below /run/netns.
	if got, _ := inodeOf(n.name(own)); got != own {
		t.Errorf("the own namespace is called %q", n.name(own))
	}
	if got := n.name(7); got != "net:[7]" {
		t.Errorf("an unknown namespace is called %q", got)
	}
}

func TestOldCgroupAttachmentsAreLookedForOnlyWhereTheyCanBe(t *testing.T) {
	for name, tc := range map[string]struct {
		inv  Inventory
		want map[string]bool
	}{
		"no programs": {Inventory{}, nil},
		"XDP only":    {Inventory{Programs: []Program{{ID: 1, Type: "XDP"}}}, nil},
		"one by link": {Inventory{Programs: []Program{{ID: 1, Type: "CGroupDevice"}}, Links: []Link{{ID: 2, Program: 1}}}, nil},
		"one without": {Inventory{Programs: []Program{{ID: 1, Type: "CGroupDevice"}}}, map[string]bool{"cgroup/dev": true}},
		"one of two without": {Inventory{Programs: []Program{{ID: 1, Type: "CGroupSKB"}, {ID: 3, Type: "CGroupSKB"}}, Links: []Link{{ID: 2, Program: 1}}},
			map[string]bool{"cgroup_skb/ingress": true, "cgroup_skb/egress": true}},
	} {
		t.Run(name, func(t *testing.T) {
			var got map[string]bool
			for _, h := range cgroupHooks(tc.inv) {
				if got == nil {
					got = map[string]bool{}
				}
				got[h.Name] = true
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("hooks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLinkTypesHaveTheKernelsNames(t *testing.T) {
	for kind, want := range map[link.Type]string{
		link.RawTracepointType: "raw_tracepoint", link.TracingType: "tracing", link.CgroupType: "cgroup", link.IterType: "iter",
		link.NetNsType: "netns", link.XDPType: "xdp", link.PerfEventType: "perf_event", link.KprobeMultiType: "kprobe_multi",
		link.StructOpsType: "struct_ops", link.NetfilterType: "netfilter", link.TCXType: "tcx", link.UprobeMultiType: "uprobe_multi",
		link.NetkitType: "netkit", link.Type(999): "",
	} {
		if got := typeName(kind); got != want {
			t.Errorf("link type %d is %q, want %q", kind, got, want)
		}
	}
}

func TestPlacesNameOnlyHooksOfTheTable(t *testing.T) {
	for _, name := range []string{
		"xdp", "tc/ingress", "tc/egress", "raw_tp", "tp_btf", "tracepoint", "kprobe", "uprobe", "perf_event", "netfilter", "kprobe.multi", "uprobe.multi", "iter",
		"struct_ops",
	} {
		if _, ok := hook.Lookup(name); !ok {
			t.Errorf("the hook table has no %q", name)
		}
	}
}

func TestALinkWithoutAnInterfaceLostIt(t *testing.T) {
	got := devices{}.place("xdp", ebpf.AttachXDP, 0, 1)
	if diff := cmp.Diff(Place{Hook: "xdp", Target: "gone"}, got); diff != "" {
		t.Errorf("place (-want +got):\n%s", diff)
	}
	got = devices{}.place("xdp", ebpf.AttachXDP, 5, 1)
	if diff := cmp.Diff(Place{Hook: "xdp", Target: "interface 5 of another namespace"}, got); diff != "" {
		t.Errorf("place (-want +got):\n%s", diff)
	}
}

func TestOffsetsAreToldWhereThereAreAny(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "/bin/x", 16: "/bin/x+0x10"} {
		if got := offset("/bin/x", bytes); got != want {
			t.Errorf("offset of %d bytes is %q, want %q", bytes, got, want)
		}
	}
}
