package inventory

import (
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/program/holders"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestJoinBringsKnowledgeTogether(t *testing.T) {
	inv := Inventory{
		Programs: []Program{
			{ID: 1, Type: "XDP", Maps: []uint32{7}}, {ID: 2, Type: "Tracing", Maps: []uint32{7, 8}}, {ID: 3, Type: "XDP"}, {ID: 6, Type: "RawTracepointWritable"},
		},
		Links: []Link{{ID: 4, Program: 1, Place: Place{Hook: "xdp", Target: "eth0"}}, {ID: 5, Program: 2, Place: Place{Hook: "raw_tp", Target: "sys_enter"}},
			{ID: 10, Program: 6, Place: Place{Hook: "raw_tp", Target: "bpf_test_finish"}}},
		Maps: []Map{{ID: 7}, {ID: 8}, {ID: 9}},
	}
	revision := "/sys/fs/bpf/skep/u/" + strings.Repeat("0a", 16)
	inv.join("/sys/fs/bpf/skep",
		map[holders.Object][]Process{holders.Map(9): {{PID: 1, Name: "init"}}},
		map[holders.Object][]string{
			holders.Link(4): {"/sys/fs/bpf/skep/+xdp/3/link"}, holders.Map(9): {"/sys/fs/bpf/skepper/m", "/sys/fs/bpf/skep/u/somebodys"},
			holders.Map(8): {"/x", revision + "/m-counts"},
		},
		map[uint32][]Place{1: {{Hook: "xdp", Target: "eth0"}}, 3: {{Hook: "xdp", Target: "eth1"}}})
	want := Inventory{
		Programs: []Program{
			{ID: 1, Type: "XDP", Maps: []uint32{7}, Managed: true, Attached: []Place{{"xdp", "eth0", 4}}, Holders: []Process{}, Pins: []string{}},
			{ID: 2, Type: "Tracing", Maps: []uint32{7, 8}, Attached: []Place{{"tp_btf", "sys_enter", 5}}, Holders: []Process{}, Pins: []string{}},
			{ID: 3, Type: "XDP", Attached: []Place{{"xdp", "eth1", 0}}, Holders: []Process{}, Pins: []string{}},
			{ID: 6, Type: "RawTracepointWritable", Attached: []Place{{"raw_tp.w", "bpf_test_finish", 10}}, Holders: []Process{}, Pins: []string{}},
		},
		Links: []Link{
			{ID: 4, Program: 1, Place: Place{Hook: "xdp", Target: "eth0"}, Managed: true, Holders: []Process{}, Pins: []string{"/sys/fs/bpf/skep/+xdp/3/link"}},
			{ID: 5, Program: 2, Place: Place{Hook: "tp_btf", Target: "sys_enter"}, Holders: []Process{}, Pins: []string{}},
			{ID: 10, Program: 6, Place: Place{Hook: "raw_tp.w", Target: "bpf_test_finish"}, Holders: []Process{}, Pins: []string{}},
		},
		Maps: []Map{
			{ID: 7, Programs: []uint32{1, 2}, Managed: true, Holders: []Process{}, Pins: []string{}},
			{ID: 8, Programs: []uint32{2}, Managed: true, Holders: []Process{}, Pins: []string{"/x", revision + "/m-counts"}},
			{ID: 9, Programs: []uint32{}, Holders: []Process{{PID: 1, Name: "init"}}, Pins: []string{"/sys/fs/bpf/skepper/m", "/sys/fs/bpf/skep/u/somebodys"}},
		},
	}
	if diff := cmp.Diff(want, inv); diff != "" {
		t.Errorf("inventory (-want +got):\n%s", diff)
	}
}

func TestHooksOfAttachTypes(t *testing.T) {
	for attach, want := range map[ebpf.AttachType]string{
		ebpf.AttachXDP: "xdp", ebpf.AttachTCXIngress: "tcx/ingress", ebpf.AttachNetkitPeer: "netkit/peer",
		ebpf.AttachCGroupInetIngress: "cgroup_skb/ingress", ebpf.AttachCGroupInet4Connect: "cgroup/connect4",
		ebpf.AttachSkLookup: "sk_lookup", ebpf.AttachTraceFEntry: "fentry", ebpf.AttachLSMMac: "lsm",
	} {
		if got := hookOf(attach); got != want {
			t.Errorf("hook of %s is %q, want %q", attach, got, want)
		}
	}
	if got := hookOf(ebpf.AttachType(9999)); got == "" {
		t.Error("an unknown attach type has no name at all")
	}
}
