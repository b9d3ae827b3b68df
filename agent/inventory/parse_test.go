package inventory

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

func TestFdinfoNamesTheObject(t *testing.T) {
	for name, tc := range map[string]struct {
		info string
		want object
		ok   bool
	}{
		"a program":               {"pos:\t0\nflags:\t02000002\nprog_type:\t6\nprog_jited:\t1\nprog_id:\t77\nrun_cnt:\t0\n", object{ofProgram, 77}, true},
		"a map":                   {"map_type:\t2\nmap_id:\t5\nfrozen:\t0\n", object{ofMap, 5}, true},
		"a link, not its program": {"link_type:\txdp\nlink_id:\t9\nprog_tag:\tx\nprog_id:\t77\nifindex:\t3\n", object{ofLink, 9}, true},
		"a file":                  {"pos:\t0\nflags:\t02\n", object{}, false},
		"nothing":                 {"", object{}, false},
		"a number out of range":   {"map_id:\t4294967296\n", object{}, false},
		"words":                   {"map_id:\tmany\n", object{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseFdinfo([]byte(tc.info))
			if got != tc.want || ok != tc.ok {
				t.Errorf("got %+v %v, want %+v %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestHoldersAreReadFromProc(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name string, descriptors map[string][2]string) {
		dir := filepath.Join(proc, pid)
		for _, sub := range []string{"fd", "fdinfo"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if name != "" {
			write(t, filepath.Join(dir, "comm"), name+"\n")
		}
		for fd, d := range descriptors {
			if err := os.Symlink(d[0], filepath.Join(dir, "fd", fd)); err != nil {
				t.Fatal(err)
			}
			if d[1] != "" {
				write(t, filepath.Join(dir, "fdinfo", fd), d[1])
			}
		}
	}
	process("20", "agent", map[string][2]string{
		"3": {"anon_inode:bpf-map", "map_id:\t1\n"}, "4": {"anon_inode:bpf-map", "map_id:\t1\n"}, "5": {"anon_inode:bpf-prog", "prog_id:\t2\n"},
	})
	process("3", "", map[string][2]string{"3": {"anon_inode:bpf-map", "map_id:\t1\n"}, "4": {"/etc/passwd", "map_id:\t8\n"}})
	process("4", "gone", map[string][2]string{"3": {"anon_inode:bpf_link", ""}})
	process("self", "no number", map[string][2]string{"3": {"anon_inode:bpf-map", "map_id:\t1\n"}})
	got, err := holders(t.Context(), proc)
	if err != nil {
		t.Fatal(err)
	}
	want := map[object][]Process{{ofMap, 1}: {{3, ""}, {20, "agent"}}, {ofProgram, 2}: {{20, "agent"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(object{})); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

func TestHoldersNeedProc(t *testing.T) {
	if _, err := holders(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("got no error without /proc")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := holders(ctx, "/proc"); err == nil {
		t.Error("got no error after the context ended")
	}
}

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
		map[object][]Process{{ofMap, 9}: {{1, "init"}}},
		map[object][]string{
			{ofLink, 4}: {"/sys/fs/bpf/skep/+xdp/3/link"}, {ofMap, 9}: {"/sys/fs/bpf/skepper/m", "/sys/fs/bpf/skep/u/somebodys"},
			{ofMap, 8}: {"/x", revision + "/m-counts"},
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
			{ID: 9, Programs: []uint32{}, Holders: []Process{{1, "init"}}, Pins: []string{"/sys/fs/bpf/skepper/m", "/sys/fs/bpf/skep/u/somebodys"}},
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
