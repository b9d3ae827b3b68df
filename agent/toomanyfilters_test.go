package agent_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// floodFilters makes more filters than are read of a pod, on both sides of its eth0 and behind and before
// those of Skep's.
func floodFilters(t *testing.T, in pod, program *ebpf.Program) {
	t.Helper()
	world.Within(t, in.path, func() error {
		l, err := netlink.LinkByName("eth0")
		for i := 0; i < 20_000 && err == nil; i++ {
			parent := uint32(netlink.HANDLE_MIN_INGRESS)
			if i%2 == 1 {
				parent = netlink.HANDLE_MIN_EGRESS
			}
			err = netlink.FilterAdd(&netlink.BpfFilter{Fd: program.FD(), Name: "many", DirectAction: true, FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index,
				Parent: parent, Priority: uint16(1 + i/2%2*40_000 + i%100), Protocol: unix.ETH_P_ALL}})
		}
		return err
	})
}

// filterIn is the filter of an application's on eth0 of a pod, as the node reports it: its place, or its error.
func filterIn(a *agent.Agent, name, pod string) string {
	for _, s := range a.Status() {
		for _, p := range s.Programs {
			for _, l := range p.Links {
				if s.Application.Name == name && l.Target == "eth0 in pod "+pod {
					return l.Filter + l.Error
				}
			}
		}
	}
	return ""
}

// TestAFloodOfFiltersHoldsUpNobody has a pod make very many filters where programs run. The filter of another
// pod is put back and taken away, and those that the pod has already are updated, kept through a restart and
// taken away. One more fails alone.
func TestAFloodOfFiltersHoldsUpNobody(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "tc/ingress")
	world.Quiet(t)
	w, known := world.New(t), newPods(t)
	well, flooded := known.add("well"), known.add("flooded")
	known.choose("a", "well", "flooded")
	known.choose("late", "well", "flooded")
	known.choose("revoked", "well", "flooded")
	a, stop := startIn(w, known)
	w.Must(a, counter(w, "a", "tc/ingress", "tcx_count", 500), counter(w, "revoked", "tc/ingress", "tcx_count", 600))
	floodFilters(t, flooded, world.ForeignProgram(t, ebpf.SchedCLS))
	before := world.Count(t, world.Counts(w, a, "a"))

	_ = w.Accept(a, counter(w, "a", "tc/ingress", "tcx_count_v2", 500), counter(w, "late", "tc/ingress", "tcx_count", 400))
	const refused = "read ingress filters of eth0 in pod flooded: there are more than 2048, which is the limit of what is read; " +
		"delete those that the pod does not need: `nsenter --net="
	world.Until(t, "one more to be refused", time.Minute, func() bool {
		return strings.Contains(filterIn(a, "late", "flooded"), refused) && filterIn(a, "late", "well") == "clsact pref 14000 handle 0x1"
	})
	world.Send(t, well.peer, 3)
	world.Send(t, flooded.peer, 4)
	world.Until(t, "the update to count packets of both pods", time.Minute, func() bool { return world.Count(t, world.Counts(w, a, "a")) >= before+7 })

	delFilter := func(in pod, pref uint16) {
		world.Within(t, in.path, func() error {
			return netlink.FilterDel(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: world.Index(t, "eth0"), Parent: netlink.HANDLE_MIN_INGRESS, Priority: pref, Handle: 1,
					Protocol: unix.ETH_P_ALL},
			})
		})
	}
	hasFilter := func(in pod, pref uint16) (is bool) {
		world.Within(t, in.path, func() error {
			err := netlink.FilterAdd(&netlink.BpfFilter{
				Fd: -1, FilterAttrs: netlink.FilterAttrs{
					LinkIndex: world.Index(t, "eth0"), Parent: netlink.HANDLE_MIN_INGRESS, Priority: pref, Handle: 1, Protocol: unix.ETH_P_ALL,
				},
			})
			is = errors.Is(err, unix.EEXIST)
			return nil
		})
		return is
	}
	delFilter(well, 17000)
	world.Until(t, "the filter of the other pod to come back", time.Minute, func() bool { a.Reconcile(t.Context()); return hasFilter(well, 17000) })

	stop()
	a, _ = startIn(w, known)
	_ = w.Accept(a, w.Gone("revoked"))
	world.Until(t, "what is revoked to go", time.Minute, func() bool { return !hasFilter(flooded, 20000) && !hasFilter(well, 20000) })
	if !hasFilter(flooded, 17000) || !hasFilter(well, 17000) {
		t.Error("a filter of another application went")
	}
	_ = w.Accept(a, w.Gone("a"), w.Gone("late"))
	world.Until(t, "all to go", time.Minute, func() bool { return !hasFilter(flooded, 17000) && !hasFilter(well, 17000) && !hasFilter(well, 14000) })
	world.Until(t, "nothing to be left", time.Minute, func() bool { return len(a.Status()) == 0 })
	world.Within(t, flooded.path, func() error {
		return netlink.QdiscDel(&netlink.GenericQdisc{
			QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: world.Index(t, "eth0"), Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)},
		})
	})
	world.Until(t, "the note of the flooded qdisc to go", time.Minute, func() bool {
		a.Reconcile(t.Context())
		notes, err := os.ReadDir(filepath.Join(w.BPFFS, "+clsact"))
		return errors.Is(err, fs.ErrNotExist) || err == nil && len(notes) == 0
	})
	w.LeavesNothing()
}
