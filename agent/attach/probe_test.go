package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/running"
)

func TestEveryHookIsProbedAndLeavesNothing(t *testing.T) {
	need.Kernel(t)
	before := bpfDescriptors(t)
	for _, h := range hook.All() {
		err := attach.Probe(h)
		if lacks := new(attach.LackingError); h.Attachable && err != nil && (!errors.As(err, &lacks) || !lacks.Older() && !running.MayLack(t, h.Name)) {
			t.Errorf("Probe of %s = %v", h.Name, err)
		}
	}
	if after := bpfDescriptors(t); after != before {
		t.Errorf("%d descriptors of BPF objects are open after the probes, and %d were before", after, before)
	}
}

// BenchmarkProbe probes the whole table, as an agent does when it starts.
func BenchmarkProbe(b *testing.B) {
	need.Kernel(b)
	for b.Loop() {
		for _, h := range hook.All() {
			_ = attach.Probe(h)
		}
	}
}

func bpfDescriptors(t *testing.T) int {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range open {
		if what, err := os.Readlink(fd); err == nil && strings.Contains(what, "bpf-") {
			n++
		}
	}
	return n
}

func TestAProbeTellsAMissingRightFromAMissingHook(t *testing.T) {
	need.Kernel(t)
	probe := func(names []string, lost ...int) map[string][]rights.Capability {
		missing := map[string][]rights.Capability{}
		drop.Capabilities(t, func() {
			for _, name := range names {
				denied := new(rights.Error)
				if err := attach.Probe(row(t, name)); errors.As(err, &denied) {
					missing[name] = denied.Missing
				} else if lacks := new(attach.LackingError); err != nil && (!errors.As(err, &lacks) || !lacks.Older() && !running.MayLack(t, name)) {
					t.Errorf("Probe of %s = %v", name, err)
				}
			}
		}, lost...)
		return missing
	}
	names := []string{
		"xdp", "raw_tp", "tp_btf", "iter", "uprobe", "uprobe.multi", "cgroup/connect4", "cgroup_skb/egress", "sk_lookup", "raw_tp.w", "flow_dissector", "netfilter",
	}
	for sentence, tc := range map[string]struct {
		lost []int
		want map[string][]rights.Capability
	}{
		"every right":           {nil, map[string][]rights.Capability{}},
		"CAP_SYS_ADMIN for all": {[]int{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, map[string][]rights.Capability{}},
		"all but CAP_SYS_ADMIN": {[]int{unix.CAP_SYS_ADMIN}, map[string][]rights.Capability{"uprobe": {rights.SysAdmin}}},
		"without CAP_PERFMON also": {[]int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, map[string][]rights.Capability{
			"uprobe": {rights.SysAdmin, rights.Perfmon}, "uprobe.multi": {rights.Perfmon}, "raw_tp": {rights.Perfmon}, "tp_btf": {rights.Perfmon},
			"iter":     {rights.Perfmon},
			"raw_tp.w": {rights.Perfmon}}},
		"without CAP_NET_ADMIN also": {[]int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}, map[string][]rights.Capability{
			"uprobe": {rights.SysAdmin}, "xdp": {rights.NetAdmin}, "cgroup/connect4": {rights.NetAdmin}, "cgroup_skb/egress": {rights.NetAdmin},
			"flow_dissector": {rights.NetAdmin}, "netfilter": {rights.NetAdmin}}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, probe(names, tc.lost...)); diff != "" {
				t.Errorf("rights missing (-want +got):\n%s", diff)
			}
		})
	}
	never := hook.Hook{Name: "cgroup/never", ProgramType: ebpf.CGroupSockAddr, AttachType: 4000, Shape: hook.Cgroup, MinKernel: "99.1", Attachable: true}
	if err := attach.Probe(never); !errors.As(err, new(*attach.LackingError)) {
		t.Errorf("Probe of a hook that no kernel has = %v", err)
	}
}
