package admission_test

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

//go:generate go run ../../../test/fixture/programs/compile testdata testdata

// maps62Object has an XDP program of 62 maps, stack512Object one that leaves a chain no stack, and
// divisionsObject one that the kernel takes long to load.
var (
	//go:embed testdata/maps62.o
	maps62Object []byte
	//go:embed testdata/stack512.o
	stack512Object []byte
	//go:embed testdata/divisions.o
	divisionsObject []byte
)

// attack is a pair of applications that no interface holds together.
type attack struct {
	victim, attacker func(w *world.World, iface string) intent.Payload
	// says is what the rejection has to name.
	says string
}

// maps62 is an XDP program of 62 maps.
func maps62(w *world.World, iface string) intent.Payload {
	p := w.Intent("maps62", "xdp_pass", v1alpha1.Program{Name: "maps62", Attach: world.On("xdp", iface)})
	p.ObjectDigest = w.Object(maps62Object)
	return p
}

// divisions is an XDP program that takes most of a namespace's share of the time that a chain takes to load.
func divisions(w *world.World, iface string) intent.Payload {
	p := w.Intent("divisions", "xdp_pass", v1alpha1.Program{Name: "divisions", Attach: world.On("xdp", iface)})
	p.ObjectDigest = w.Object(divisionsObject)
	return p
}

// stack512 is an XDP program that fits on an interface alone.
func stack512(w *world.World, iface string) intent.Payload {
	p := w.Intent("stack512", "xdp_pass", v1alpha1.Program{Name: "stack512", Attach: world.On("xdp", iface)})
	p.ObjectDigest = w.Object(stack512Object)
	return p
}

func attacks() map[string]attack {
	return map[string]attack{
		"62 maps": {
			victim:   func(w *world.World, iface string) intent.Payload { return world.XDP(w, "xdp_maps", "xdp_maps", iface) },
			attacker: maps62,
			says:     "maps: it takes 62",
		},
		"a proprietary licence": {
			victim: func(w *world.World, iface string) intent.Payload { return world.XDP(w, "xdp_gpl", "xdp_gpl", iface) },
			attacker: func(w *world.World, iface string) intent.Payload {
				return world.XDP(w, "xdp_proprietary", "xdp_proprietary", iface)
			},
			says: "licence: its licence is not GPL compatible",
		},
		"all of the stack": {
			victim: func(w *world.World, iface string) intent.Payload {
				return world.XDP(w, "xdp_count", "count_packets", iface)
			},
			attacker: stack512,
			says:     "stack: with the dispatcher its deepest path of calls takes more",
		},
		"63 TCX programs": {
			victim: func(w *world.World, iface string) intent.Payload {
				return w.Intent("tcx", "tcx_count", v1alpha1.Program{Name: "count_ingress", Attach: world.On("tcx/ingress", iface)})
			},
			attacker: func(w *world.World, iface string) intent.Payload { return world.TCX63(w, iface, 63) },
			says:     "programs: it takes 63",
		},
	}
}

// recreate takes an interface away and makes it anew, with another index.
func recreate(t testing.TB, name, peer string) {
	t.Helper()
	before := world.Index(t, name)
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	world.Veth(t, name, peer)
	if world.Index(t, name) == before {
		t.Fatalf("%s has index %d again", name, before)
	}
}

// newAgent is one that looks only when it is told to, whose tenants may take all
// of an interface, and who tries again at once.
func newAgent(w *world.World, share int) (*agent.Agent, func()) {
	w.T.Helper()
	o := w.Options()
	o.NamespaceShare = share
	o.BackOff = agent.BackOff{First: time.Nanosecond, Most: time.Nanosecond}
	return world.Ending(w, o)
}

// TestWhoRanKeepsItsPlace rejects an attacker beside a victim that runs, and has
// all that is in the kernel go, or be asked for on a node that ran neither.
func TestWhoRanKeepsItsPlace(t *testing.T) {
	need.Kernel(t)
	const newNode = "a new node runs neither"
	events := map[string]func(t *testing.T, w *world.World, a *agent.Agent, end func(), both []intent.Payload) *agent.Agent{
		"the node reboots": func(t *testing.T, w *world.World, _ *agent.Agent, end func(), _ []intent.Payload) *agent.Agent {
			end()
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			a, _ := newAgent(w, 100)
			return a
		},
		"the BPF file system is emptied": func(t *testing.T, w *world.World, _ *agent.Agent, end func(), _ []intent.Payload) *agent.Agent {
			end()
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			world.Until(t, "the interface to be free", time.Minute, func() bool {
				l, err := netlink.LinkByName("fr0")
				return err == nil && (l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached)
			})
			a, _ := newAgent(w, 100)
			return a
		},
		"the interface is made anew": func(t *testing.T, _ *world.World, a *agent.Agent, _ func(), _ []intent.Payload) *agent.Agent {
			recreate(t, "fr0", "fr1")
			return a
		},
		"the interface is away for a while": func(t *testing.T, _ *world.World, a *agent.Agent, _ func(), _ []intent.Payload) *agent.Agent {
			l, err := netlink.LinkByName("fr0")
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.LinkDel(l); err != nil {
				t.Fatal(err)
			}
			world.Looks(t, a)
			world.Veth(t, "fr0", "fr1")
			return a
		},
		newNode: func(t *testing.T, w *world.World, _ *agent.Agent, end func(), both []intent.Payload) *agent.Agent {
			end()
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
			w.Dir = t.TempDir()
			a, _ := newAgent(w, 100)
			a.Batch(func() {
				for _, p := range both {
					if err := a.Accept(w.Seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			return a
		},
	}
	for what, c := range attacks() {
		for by, order := range map[string]struct {
			namespace string
			priority  int32
		}{
			"at a lower priority":   {"zone", 1},
			"under an earlier name": {"area", v1alpha1.DefaultPriority},
		} {
			for event, happen := range events {
				t.Run(fmt.Sprintf("%s %s, and %s", what, by, event), func(t *testing.T) {
					w := world.New(t)
					world.Veth(t, "fr0", "fr1")
					a, end := newAgent(w, 100)
					victim := world.Tenant(c.victim(w, "fr0"), "home", "victim", 2_000, v1alpha1.DefaultPriority)
					attacker := world.Tenant(c.attacker(w, "fr0"), order.namespace, "attacker", 1_000, order.priority)
					if event == newNode {
						// Nothing speaks for the victim there but its age.
						attacker.Created = 3_000
					}
					for _, p := range []intent.Payload{victim, attacker} {
						if err := a.Accept(w.Seal(p)); err != nil {
							t.Fatal(err)
						}
						world.Looks(t, a)
					}
					check := func(when string, a *agent.Agent) {
						t.Helper()
						if !world.IsIn(a, victim) {
							t.Errorf("%s the victim is out: %s", when, world.ErrorOf(a, victim))
						}
						if err := world.ErrorOf(a, attacker); !strings.Contains(err, c.says) || strings.Contains(err, "victim") || strings.Contains(err, "home") {
							t.Errorf("%s the attacker is told %q", when, err)
						}
					}
					check("before,", a)
					a = happen(t, w, a, end, []intent.Payload{attacker, victim})
					world.Looks(t, a)
					check("after,", a)
				})
			}
		}
	}
}

// chainLoads counts the chains that were tried.
type chainLoads struct{ tried, failed int }

// Loaded implements agent.Observer.
func (c *chainLoads) Loaded(what agent.Loadable, _ time.Duration, err error) {
	if what != agent.LoadChain {
		return
	}
	c.tried++
	if err != nil {
		c.failed++
	}
}

// Attached implements agent.Observer.
func (*chainLoads) Attached(string, time.Duration, error) {}

// Healed implements agent.Observer.
func (*chainLoads) Healed(agent.Drift) {}

// TestManyThatDoNotFitCostFewLoads has applications arrive at once of which the
// verifier alone can reject some, between older and younger ones that fit.
func TestManyThatDoNotFitCostFewLoads(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct{ early, bad, most int }{
		// All of them, by halves, and what fits; some more while revisions come one by one.
		"one that does not fit behind many": {30, 1, 1 + 5 + 1 + 8},
		// Each once, by halves of fewer and fewer, and what fits.
		"many that do not fit": {2, 12, 12 * (1 + 4 + 1)},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			var loads chainLoads
			o := w.Options()
			o.Observer, o.BackOff = &loads, agent.BackOff{First: time.Hour, Most: time.Hour}
			a := w.Idle(o)
			var fit, misfit []intent.Payload
			for i := range c.early {
				fit = append(fit, world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass", "fr0"), "home", fmt.Sprintf("early-%d", i), 1, 500))
			}
			for i := range c.bad {
				misfit = append(misfit, world.Tenant(stack512(w, "fr0"), "zone", fmt.Sprintf("bad-%d", i), 2, 1))
			}
			fit = append(fit, world.Tenant(world.XDP(w, "xdp_count", "count_packets", "fr0"), "home", "late", 3, 500))
			a.Batch(func() {
				for _, p := range slices.Concat(misfit, fit) {
					if err := a.Accept(w.Seal(p)); err != nil {
						t.Fatal(err)
					}
				}
			})
			world.Until(t, "all that fit to be in", time.Minute, func() bool {
				a.Reconcile(t.Context())
				return !slices.ContainsFunc(fit, func(p intent.Payload) bool { return !world.IsIn(a, p) }) &&
					!slices.ContainsFunc(misfit, func(p intent.Payload) bool { return !strings.Contains(world.ErrorOf(a, p), "stack: ") })
			})
			if loads.tried > c.most {
				t.Errorf("%d chains were loaded, want %d at most", loads.tried, c.most)
			}
			before := loads.tried
			world.Looks(t, a)
			if n := loads.tried - before; n != 0 {
				t.Errorf("at rest %d chains are loaded", n)
			}
			for _, p := range misfit {
				if err := world.ErrorOf(a, p); strings.Contains(err, "home") {
					t.Errorf("%s is told %q", p.Application, err)
				}
			}
		})
	}
}

// TestANamespaceHasItsShareOfAnInterface has one namespace ask for more than half.
func TestANamespaceHasItsShareOfAnInterface(t *testing.T) {
	need.Kernel(t)
	clusters := func(p intent.Payload) intent.Payload {
		p.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "all"}
		return p
	}
	for sentence, c := range map[string]struct {
		share int
		ask   func(w *world.World) intent.Payload
		says  string
	}{
		"maps by default": {0, func(w *world.World) intent.Payload { return world.Tenant(maps62(w, "fr0"), "zone", "all", 1, 500) },
			"maps: it takes 62, namespace zone holds 0, and one namespace may have 32 of the 64 (50 %)"},
		"maps where all may be had": {100, func(w *world.World) intent.Payload { return world.Tenant(maps62(w, "fr0"), "zone", "all", 1, 500) }, ""},
		"maps of a cluster-scoped application": {0, func(w *world.World) intent.Payload {
			return clusters(world.Tenant(maps62(w, "fr0"), "", "all", 1, 500))
		}, ""},
		"programs on TCX": {0, func(w *world.World) intent.Payload {
			return world.Tenant(world.TCX63(w, "fr0", 32), "zone", "all", 1, 500)
		},
			"programs: it takes 32, namespace zone holds 0, and one namespace may have 31 of the 63 (50 %)"},
		"as many programs on TCX as it may": {0, func(w *world.World) intent.Payload {
			return world.Tenant(world.TCX63(w, "fr0", 31), "zone", "all", 1, 500)
		}, ""},
		"programs on TCX, of a smaller share": {10, func(w *world.World) intent.Payload {
			return world.Tenant(world.TCX63(w, "fr0", 7), "zone", "all", 1, 500)
		},
			"one namespace may have 6 of the 63 (10 %)"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			a, _ := newAgent(w, c.share)
			p := c.ask(w)
			if err := a.Accept(w.Seal(p)); err != nil {
				t.Fatal(err)
			}
			world.Looks(t, a)
			if world.IsIn(a, p) != (c.says == "") || !strings.Contains(world.ErrorOf(a, p), c.says) {
				t.Errorf("it is told %q", world.ErrorOf(a, p))
			}
		})
	}
}

// TestANamespaceHasItsShareOfTheTimeToLoadAChain has a namespace fill its share before another one and the cluster join, all
// at once or one after the other.
func TestANamespaceHasItsShareOfTheTimeToLoadAChain(t *testing.T) {
	need.Kernel(t)
	for sentence, atOnce := range map[string]bool{"at once": true, "one after the other": false} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "fr0", "fr1")
			a, _ := newAgent(w, 0)
			first, second := world.Tenant(divisions(w, "fr0"), "zone", "first", 1, 500), world.Tenant(divisions(w, "fr0"), "zone", "second", 2, 500)
			other := world.Tenant(divisions(w, "fr0"), "other", "one", 3, 500)
			all := world.Tenant(divisions(w, "fr0"), "", "all", 4, 500)
			all.Application.Kind = v1alpha1.KindClusterBpfApplication
			for _, p := range []intent.Payload{first, second, other, all} {
				if err := a.Accept(w.Seal(p)); err != nil {
					t.Fatal(err)
				}
				if !atOnce {
					world.Looks(t, a)
				}
			}
			world.Looks(t, a)
			for _, p := range []intent.Payload{first, other, all} {
				if !world.IsIn(a, p) {
					t.Errorf("%s is out: %s", p.Application, world.ErrorOf(a, p))
				}
			}
			if says := world.ErrorOf(a, second); world.IsIn(a, second) || !strings.Contains(says, "load time: with it and what is kept for other namespaces") {
				t.Errorf("the second one of a namespace is in (%t), and told %q", world.IsIn(a, second), says)
			}
		})
	}
}

// TestASmallerShareTakesNothingAway has a namespace run more than it may have any
// more, reboot, and change what it runs.
func TestASmallerShareTakesNothingAway(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fr0", "fr1")
	a, end := newAgent(w, 100)
	p := world.Tenant(world.TCX63(w, "fr0", 40), "zone", "all", 1, 500)
	if err := a.Accept(w.Seal(p)); err != nil {
		t.Fatal(err)
	}
	world.Looks(t, a)
	for _, lost := range []bool{false, true} {
		end()
		if lost {
			if err := os.RemoveAll(w.BPFFS); err != nil {
				t.Fatal(err)
			}
			recreate(t, "fr0", "fr1")
		}
		a, end = newAgent(w, 50)
		world.Looks(t, a)
		if !world.IsIn(a, p) {
			t.Fatalf("with everything lost (%t) it is out: %s", lost, world.ErrorOf(a, p))
		}
	}
	for n, fits := range map[int]bool{39: true, 41: false} {
		next := world.Tenant(world.TCX63(w, "fr0", n), "zone", "all", 1, 500)
		if err := a.Accept(w.Seal(next)); err != nil {
			t.Fatal(err)
		}
		world.Looks(t, a)
		if world.IsIn(a, next) != fits {
			t.Errorf("with %d programs it is told %q", n, world.ErrorOf(a, next))
		}
	}
}
