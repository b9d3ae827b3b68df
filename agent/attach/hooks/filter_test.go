package hooks_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// withFilters runs a test for the hooks of incoming packets whose programs are filters on this
// kernel: where it has no TCX, those of TCX as well.
func withFilters(t *testing.T, test func(t *testing.T, hook string)) {
	need.Kernel(t)
	world.Quiet(t)
	for _, name := range []string{"tc/ingress", "tcx/ingress"} {
		t.Run(name, func(t *testing.T) {
			world.NeedHook(t, name)
			if name == "tcx/ingress" && world.HasTCX() {
				t.Skip("SKIPPED: the kernel has TCX")
			}
			world.Veth(t, "hk0", "hk1")
			test(t, name)
		})
	}
}

// filterOrder names the applications whose filters hk0 has, in the order in which they run, each with
// its pref.
func filterOrder(t *testing.T, a *agent.Agent) string {
	t.Helper()
	names := map[uint32]string{}
	for _, s := range a.Status() {
		for _, p := range s.Programs {
			names[p.ID] = s.Application.Name
		}
	}
	var all []string
	for _, f := range world.FiltersOf(t, "hk0", false) {
		all = append(all, fmt.Sprintf("%s@%d", cmp.Or(names[uint32(f.Id)], "other"), f.Priority))
	}
	return strings.Join(all, " ")
}

// ran are the applications whose program runs for a packet that comes in on hk0.
func ran(t *testing.T, a *agent.Agent) []string {
	t.Helper()
	return world.RanFor(t, a, "hk1")
}

// prefs writes an order with the prefs of a hook.
func prefs(hook, format string, priorities ...int) string {
	var all []any
	for _, p := range priorities {
		if hook == "tc/ingress" {
			p = 2000 + 30*(p/1000) + p%1000
		} else {
			p = 1 + p/1000 + p%1000
		}
		all = append(all, p)
	}
	return fmt.Sprintf(format, all...)
}

// TestFiltersOfApplicationsRunByPriority: the program of b lets no other run behind it. In
// the figures, thousands are the priority, and the rest what follows from neighbours.
func TestFiltersOfApplicationsRunByPriority(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		w := world.New(t)
		a, _ := w.Start()
		is := func(ran1 []string, format string, priorities ...int) {
			t.Helper()
			world.Until(t, "the order", 10*time.Second, func() bool { return filterOrder(t, a) == prefs(hook, format, priorities...) })
			if diff := gocmp.Diff(ran1, ran(t, a)); diff != "" {
				t.Errorf("ran (-want +got):\n%s", diff)
			}
		}
		w.Must(a, world.Ordered(w, hook, "c", 300, -1), world.Ordered(w, hook, "a", 100, -1), world.Ordered(w, hook, "b", 200, 0))
		is([]string{"a", "b"}, "a@%d b@%d c@%d", 100_000, 200_000, 300_000)
		w.Must(a, world.Ordered(w, hook, "c", 50, -1))
		is([]string{"a", "b", "c"}, "c@%d a@%d b@%d", 50_000, 100_000, 200_000)
		w.Must(a, world.Ordered(w, hook, "a", 200, -1), world.Ordered(w, hook, "c", 200, -1))
		if got := filterOrder(t, a); !strings.HasPrefix(got, "a@") || !strings.Contains(got, " b@") || !strings.Contains(got, " c@") {
			t.Errorf("applications of one priority run by name, and not as %s", got)
		}
		if diff := gocmp.Diff([]string{"a", "b"}, ran(t, a)); diff != "" {
			t.Errorf("ran (-want +got):\n%s", diff)
		}
		w.Must(a, w.Gone("b"))
		if diff := gocmp.Diff([]string{"a", "c"}, ran(t, a)); diff != "" {
			t.Errorf("ran (-want +got):\n%s", diff)
		}
		w.Must(a, w.Gone("a"), w.Gone("c"))
		w.LeavesNothing()
		world.HasNoQdisc(t, "hk0")
	})
}

// TestFiltersMakeRoomForOneAnother has applications of one priority come in the worst order.
func TestFiltersMakeRoomForOneAnother(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		w := world.New(t)
		a, _ := w.Start()
		for _, name := range []string{"a", "i", "b", "h", "c", "g", "d", "f", "e"} {
			w.Must(a, world.Ordered(w, hook, name, 500, -1))
		}
		if got, want := filterOrder(t, a), prefs(hook, "a@%d b@%d c@%d d@%d e@%d f@%d g@%d h@%d i@%d", 500_000, 500_001, 500_002, 500_003, 500_004, 500_005, 500_006,
			500_007, 500_008); got != want {
			t.Errorf("order\n%s, want\n%s", got, want)
		}
		if got := ran(t, a); len(got) != 9 {
			t.Errorf("ran: %v", got)
		}
	})
}

// foreign are filters that others have, with all that the kernel tells of them.
func foreign(t *testing.T, name string) []string {
	t.Helper()
	device, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		found, err := netlink.FilterList(device, parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if bpf, ok := f.(*netlink.BpfFilter); !ok || strings.HasPrefix(bpf.Name, "other") {
				all = append(all, fmt.Sprintf("%T %+v", f, f))
			}
		}
	}
	return all
}

// addFilter adds a filter of somebody else to hk0.
func addFilter(t *testing.T, parent uint32, pref uint16, handle uint32, p *ebpf.Program) *netlink.BpfFilter {
	t.Helper()
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: world.Index(t, "hk0"), Parent: parent, Priority: pref, Handle: handle,
		Protocol: unix.ETH_P_ALL},
		Fd: p.FD(), Name: "other", DirectAction: true}
	if err := netlink.FilterReplace(f); err != nil {
		t.Fatal(err)
	}
	return f
}

// clsactOf is the clsact qdisc of hk0.
func clsactOf(t *testing.T) netlink.Qdisc {
	t.Helper()
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: world.Index(t, "hk0"), Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

func TestFiltersOfOthersKeepTheirPlaces(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		if err := netlink.QdiscAdd(clsactOf(t)); err != nil {
			t.Fatal(err)
		}
		next := world.ForeignProgram(t, ebpf.SchedCLS)
		addFilter(t, netlink.HANDLE_MIN_INGRESS, 1, 1, next)
		addFilter(t, netlink.HANDLE_MIN_INGRESS, 501, 1, next)
		addFilter(t, netlink.HANDLE_MIN_INGRESS, 17000, 1, next)
		addFilter(t, netlink.HANDLE_MIN_INGRESS, 17001, 9, next)
		addFilter(t, netlink.HANDLE_MIN_EGRESS, 17000, 1, next)
		if err := netlink.FilterAdd(&netlink.MatchAll{FilterAttrs: netlink.FilterAttrs{
			LinkIndex: world.Index(t, "hk0"), Parent: netlink.HANDLE_MIN_INGRESS, Priority: 17002, Protocol: unix.ETH_P_IP,
		},
			Actions: []netlink.Action{&netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_OK}}}}); err != nil {
			t.Log("no filter matchall:", err)
		}
		before := foreign(t, "hk0")
		same := func(when string) {
			t.Helper()
			if diff := gocmp.Diff(before, foreign(t, "hk0")); diff != "" {
				t.Errorf("%s, the filters of others (-want +got):\n%s", when, diff)
			}
		}
		w := world.New(t)
		a, stop := w.Start()
		w.Must(a, world.Ordered(w, hook, "a", 500, -1), world.Ordered(w, hook, "b", 500, -1))
		same("after an attachment")
		w.Must(a, world.Ordered(w, hook, "b", 400, -1), world.Version(w, "8", world.On(hook, "hk0")[0]))
		same("after updates")
		if got := ran(t, a); !slices.Equal(got, []string{"a", "b", "hooks"}) {
			t.Errorf("ran: %v", got)
		}
		stop()
		a, _ = w.Start()
		w.Must(a)
		same("after a restart")
		w.Must(a, w.Gone("a"), w.Gone("b"), w.Gone("hooks"))
		same("after all was unloaded")
		w.LeavesNothing()
		if got := world.QdiscOf(t, "hk0"); got != "clsact" {
			t.Errorf("the qdisc is %q", got)
		}
	})
}

// TestAQdiscThatOthersUseStays: the first user of a qdisc that Skep made takes it over.
func TestAQdiscThatOthersUseStays(t *testing.T) {
	for sentence, c := range map[string]struct {
		before, during func(t *testing.T)
		want           string
	}{
		"one that Skep made goes": {want: ""},
		"one that Skep made and others use": {
			during: func(t *testing.T) {
				addFilter(t, netlink.HANDLE_MIN_EGRESS, 7, 1, world.ForeignProgram(t, ebpf.SchedCLS))
			}, want: "clsact",
		},
		"an empty one that was there before": {before: func(t *testing.T) { world.Must(t, netlink.QdiscAdd(clsactOf(t))) }, want: "clsact"},
		"one of the kind ingress of others": {before: func(t *testing.T) {
			world.Must(t, netlink.QdiscAdd(&netlink.Ingress{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: world.Index(t, "hk0"), Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)},
			}))
		}, want: "ingress"},
		"one that somebody deleted and that was": {during: func(t *testing.T) { world.Must(t, netlink.QdiscDel(clsactOf(t))) }, want: ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			withFilters(t, func(t *testing.T, hook string) {
				if c.before != nil {
					c.before(t)
				}
				w := world.New(t)
				a, _ := w.Start()
				w.Must(a, world.Ordered(w, hook, "a", 500, -1))
				if c.during != nil {
					c.during(t)
				}
				world.Until(t, "the filter", 10*time.Second, func() bool { return strings.Contains(filterOrder(t, a), "a@") })
				w.Must(a, w.Gone("a"))
				w.LeavesNothing()
				if got := world.QdiscOf(t, "hk0"); got != c.want {
					t.Errorf("the qdisc is %q, not %q", got, c.want)
				}
			})
		})
	}
}

func TestAQdiscThatTakesNoFilterIsSaid(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "tc/egress")
	block := uint32(7)
	for hook, c := range map[string]struct {
		kind  string
		block *uint32
		want  string
		// command is what the message recommends.
		command string
	}{
		"tc/egress":  {"ingress", nil, "a qdisc ingress of another tool, which has no place for egress filters", "tc qdisc del"},
		"tc/ingress": {"clsact", &block, "the ingress filters of the interface are a block that it shares with others", "tc qdisc show"},
	} {
		t.Run(hook, func(t *testing.T) {
			world.Veth(t, "hk0", "hk1")
			world.Must(t, netlink.QdiscAdd(&netlink.GenericQdisc{QdiscType: c.kind, QdiscAttrs: netlink.QdiscAttrs{LinkIndex: world.Index(t, "hk0"),
				Parent: netlink.HANDLE_CLSACT,
				Handle: netlink.MakeHandle(0xffff, 0), IngressBlock: c.block}}))
			w := world.New(t)
			a, _ := w.Start()
			refused := w.Accept(a, world.Version(w, "1", world.On(hook, "hk0")[0]))
			if refused == nil || !strings.Contains(refused.Error(), c.want) {
				t.Fatalf("the agent says %v, not %q", refused, c.want)
			}
			if got := len(world.FiltersOf(t, "hk0", false)); got > 0 {
				t.Errorf("the interface has %d filters", got)
			}
			if got := world.QdiscOf(t, "hk0"); got != c.kind {
				t.Errorf("the qdisc is %q", got)
			}
			recommended.Run(t, refused.Error(), c.command)
			if err := w.Accept(a, world.Version(w, "1", world.On(hook, "hk0")[0])); (err == nil) != (c.block == nil) {
				t.Errorf("after that, the agent says %v", err)
			}
		})
	}
}

// TestAFilterThatSomebodyElsePutInOursPlaceStays: the pref and handle of a filter prove nothing.
func TestAFilterThatSomebodyElsePutInOursPlaceStays(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		w := world.New(t)
		a, _ := w.Start()
		w.Must(a, world.Ordered(w, hook, "a", 500, -1))
		ours := world.FiltersOf(t, "hk0", false)[0]
		addFilter(t, ours.Parent, ours.Priority, ours.Handle, world.ForeignProgram(t, ebpf.SchedCLS))
		want := prefs(hook, "other@%d a@%d", 500_000, 500_001)
		world.Until(t, "a place beside it", 10*time.Second, func() bool { return filterOrder(t, a) == want })
		w.Must(a, w.Gone("a"))
		if got := filterOrder(t, a); got != prefs(hook, "other@%d", 500_000) {
			t.Errorf("filters: %s", got)
		}
		w.LeavesNothing()
	})
}

// TestWhatAKilledAgentLeftOfFilters begins where a kill left a filter twice, or without a link.
func TestWhatAKilledAgentLeftOfFilters(t *testing.T) {
	for sentence, left := range map[string]func(t *testing.T, w *world.World, l agent.LinkStatus){
		"a filter that was being moved": func(t *testing.T, _ *world.World, _ agent.LinkStatus) {
			f := *world.FiltersOf(t, "hk0", false)[0]
			p, err := ebpf.NewProgramFromID(ebpf.ProgramID(f.Id))
			world.Must(t, err)
			defer func() { _ = p.Close() }()
			f.Priority, f.Fd = f.Priority+3, p.FD()
			world.Must(t, netlink.FilterAdd(&f))
		},
		"a filter that has no link yet": func(t *testing.T, _ *world.World, l agent.LinkStatus) {
			world.Must(t, os.Remove(l.Pin))
			world.Must(t, os.Remove(l.Pin+"+at"))
		},
		"a qdisc without a filter": func(t *testing.T, _ *world.World, _ agent.LinkStatus) {
			world.Must(t, netlink.FilterDel(world.FiltersOf(t, "hk0", false)[0]))
		},
		"a note without a qdisc": func(t *testing.T, w *world.World, _ agent.LinkStatus) {
			world.Must(t, netlink.QdiscDel(clsactOf(t)))
			world.Must(t, os.Symlink("made", filepath.Join(w.BPFFS, "+clsact", "1")))
		},
	} {
		for _, wanted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, wanted %v", sentence, wanted), func(t *testing.T) {
				withFilters(t, func(t *testing.T, hook string) {
					w := world.New(t)
					a, stop := w.Start()
					w.Must(a, world.Ordered(w, hook, "a", 500, -1))
					_, l := world.One(t, a)
					stop()
					left(t, w, l)
					a, err := agent.New(w.Options())
					world.Must(t, err)
					if !wanted {
						w.Give(a, w.Gone("a"))
					}
					world.Must(t, a.Close())
					a, _ = w.Start()
					w.Must(a)
					if wanted {
						if got := filterOrder(t, a); !strings.HasPrefix(got, "a@") || strings.Contains(got, " ") {
							t.Errorf("filters: %s", got)
						}
						if got := ran(t, a); !slices.Equal(got, []string{"a"}) {
							t.Errorf("ran: %v", got)
						}
						w.Must(a, w.Gone("a"))
					}
					w.LeavesNothing()
					world.HasNoQdisc(t, "hk0")
				})
			})
		}
	}
}

// TestACleanupLeavesNoFilter of Skep's, and every other one.
func TestACleanupLeavesNoFilter(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		w := world.New(t)
		a, err := agent.New(w.Options())
		world.Must(t, err)
		w.Give(a, world.Ordered(w, hook, "a", 500, -1))
		world.Until(t, "the filter", 10*time.Second, func() bool { a.Reconcile(t.Context()); return len(world.FiltersOf(t, "hk0", false)) == 1 })
		addFilter(t, netlink.HANDLE_MIN_EGRESS, 7, 1, world.ForeignProgram(t, ebpf.SchedCLS))
		world.Must(t, a.Close())
		world.Must(t, agent.Cleanup(w.BPFFS, filepath.Join(w.Dir, "state")))
		if got := world.FiltersOf(t, "hk0", false); len(got) > 0 || len(foreign(t, "hk0")) != 1 {
			t.Errorf("filters: %v, %v", got, foreign(t, "hk0"))
		}
		w.LeavesNothing()
	})
}

// TestStatusNamesTheFilter: in the words of tc filter show.
func TestStatusNamesTheFilter(t *testing.T) {
	withFilters(t, func(t *testing.T, name string) {
		w := world.New(t)
		a, _ := w.Start()
		w.Must(a, world.Ordered(w, name, "a", 500, -1))
		_, l := world.One(t, a)
		if want := prefs(name, "clsact pref %d handle 0x1", 500_000); l.Filter != want || l.ID != 0 || l.State != agent.Attached {
			t.Errorf("link = %+v, not filter %q", l, want)
		}
		if h, _ := hook.Lookup(name); h.Replace != hook.ByLinkUpdate {
			t.Errorf("hook = %+v", h)
		}
	})
}

// TestAFilterWhoseUpdateWasNotPinnedIsFollowed: a kill may come between the two.
func TestAFilterWhoseUpdateWasNotPinnedIsFollowed(t *testing.T) {
	withFilters(t, func(t *testing.T, hook string) {
		w := world.New(t)
		a, stop := w.Start()
		w.Must(a, world.Version(w, "1", world.On(hook, "hk0")[0]))
		_, l := world.One(t, a)
		former, err := ebpf.LoadPinnedProgram(l.Pin, nil)
		world.Must(t, err)
		w.Must(a, world.Version(w, "2", world.On(hook, "hk0")[0]))
		program, _ := world.One(t, a)
		stop()
		// The library takes the one for pinned that it loaded from there.
		world.Must(t, former.Unpin())
		world.Must(t, former.Pin(l.Pin))
		world.Must(t, former.Close())
		a, _ = w.Start()
		w.Must(a)
		pinned, err := ebpf.LoadPinnedProgram(l.Pin, nil)
		world.Must(t, err)
		defer func() { _ = pinned.Close() }()
		info, err := pinned.Info()
		world.Must(t, err)
		if id, _ := info.ID(); uint32(id) != program.ID {
			t.Errorf("program %d is pinned, and the filter runs %d", id, program.ID)
		}
		if now, l := world.One(t, a); now.ID != program.ID || uint32(world.RunsUnder(t, l)) != program.ID {
			t.Errorf("program %+v, link %+v", now, l)
		}
	})
}
