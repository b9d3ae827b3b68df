package chain_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
)

// descriptors counts this process's descriptors of BPF objects and type information.
func descriptors(t *testing.T) int {
	t.Helper()
	paths, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range paths {
		if target, err := os.Readlink(path); err == nil && (strings.HasPrefix(target, "anon_inode:bpf") || strings.HasPrefix(target, "anon_inode:btf")) {
			n++
		}
	}
	return n
}

func TestLoadLeavesNoDescriptorBehind(t *testing.T) {
	gone := errors.New("gone")
	for name, tc := range map[string]struct {
		members []chain.Member
		lose    string
		fails   bool
	}{
		"a chain that loads":                   {members: []chain.Member{member(t, "a", "xdp_verdict"), member(t, "b", "xdp_void")}},
		"extern variables of two applications": {members: []chain.Member{member(t, "a", "kconfig_version"), member(t, "b", "kconfig_wrapper")}},
		"a chain the verifier refuses":         {members: []chain.Member{member(t, "a", "xdp_pass"), member(t, "b", "stack_full")}, fails: true},
		"a map that is gone":                   {members: []chain.Member{member(t, "a", "xdp_verdict"), member(t, "b", "xdp_void")}, lose: "b", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			held := load(t, tc.members[0])
			for _, m := range tc.members[1:] {
				coll, err := ebpf.NewCollection(m.Object.Copy())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(coll.Close)
				held.apps[m.Application] = coll
			}
			linked := joined(t, tc.members...)
			before := descriptors(t)
			loaded, err := chain.Load(linked, func(ref chain.MapRef) (*ebpf.Map, error) {
				if ref.Application == tc.lose {
					return nil, gone
				}
				return held.open(ref)
			}, ebpf.ProgramOptions{})
			if (err != nil) != tc.fails {
				t.Fatalf("got error %v, want one: %v", err, tc.fails)
			}
			if err == nil {
				if got := descriptors(t); got != before+3 {
					t.Errorf("a loaded chain holds %d descriptors, want its program, its types and its counters", got-before)
				}
				if err := loaded.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got := descriptors(t); got != before {
				t.Errorf("%d descriptors are left behind", got-before)
			}
		})
	}
}
