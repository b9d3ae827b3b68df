package agent_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAVersionThatMayNotRunIsReplacedInItsChainBeforeOtherLoads has a version of a
// member withdrawn while the verifier is busy with another tenant's load, and another
// member move.
func TestAVersionThatMayNotRunIsReplacedInItsChainBeforeOtherLoads(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	o := w.Options()
	o.Node = "n"
	a := w.StartWith(o)
	if err := w.Accept(a, world.Member(w, "ca", "xdp_count", "count_packets", 1), world.Member(w, "cb", "xdp_pass", "xdp_pass", 2)); err != nil {
		t.Fatal(err)
	}
	held := w.Intent("slow", "raw_tp_count", world.RawProgram())
	let := a.HoldLoads(held.UID)
	t.Cleanup(let)
	w.Give(a, held)
	world.Until(t, "the other load to begin", time.Minute, func() bool { return a.IsLoading() && loads(w, a, "slow") })
	next, moved := world.Member(w, "ca", "xdp_count_v2", "count_packets", 1), world.Member(w, "cb", "xdp_pass", "xdp_pass", 0)
	a.Batch(func() {
		if err := a.Accept(w.Seal(next), w.Seal(moved)); err != nil {
			t.Error(err)
		}
	})
	world.Until(t, "the version to be replaced", time.Minute, func() bool { return world.IsAt(a, next) })
	if !loads(w, a, "slow") {
		t.Error("it waited for the load of another application")
	}
	if got := world.ChainOf(t, a); got != "ca:count_packets cb:xdp_pass" {
		t.Errorf("chain is %q", got)
	}
	let()
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
	if got := world.ChainOf(t, a); got != "cb:xdp_pass ca:count_packets" {
		t.Errorf("chain is %q", got)
	}
}

// TestWhoChangesInALoopKeepsNobodyFromAnInterface has an application of another
// namespace change again and again in less time than the verifier takes.
func TestWhoChangesInALoopKeepsNobodyFromAnInterface(t *testing.T) {
	need.Kernel(t)
	object, err := os.ReadFile("program/chain/testdata/branches.o")
	if err != nil {
		t.Fatal(err)
	}
	for sentence, change := range map[string]func(w *world.World, p intent.Payload, i int) []intent.Payload{
		"its priority": func(_ *world.World, p intent.Payload, i int) []intent.Payload {
			return []intent.Payload{world.Tenant(p, "area", "loop", 1, int32(100+i%50))}
		},
		"its variables": func(_ *world.World, p intent.Payload, i int) []intent.Payload {
			p.Variables = map[string]apiextensionsv1.JSON{"turns": {Raw: fmt.Append(nil, 4000+i)}}
			return []intent.Payload{p}
		},
		"where it runs": func(_ *world.World, p intent.Payload, i int) []intent.Payload {
			p.Programs = slices.Clone(p.Programs)
			p.Programs[0].Attach = world.On("xdp", []string{"cn0", "cn1"}[i%2])
			return []intent.Payload{p}
		},
		"who it is": func(w *world.World, p intent.Payload, i int) []intent.Payload {
			was := world.Tenant(p, "area", fmt.Sprint("loop", i-1), 1, 100)
			return []intent.Payload{world.Tenant(p, "area", fmt.Sprint("loop", i), int64(10+i), 100), w.Tombstone(was)}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			world.Veth(t, "cn0", "cn1")
			a := w.Idle(w.Options())
			give := func(all ...intent.Payload) {
				t.Helper()
				a.Batch(func() {
					for _, p := range all {
						w.Serial++
						p.Serial = w.Serial
						if err := a.Accept(w.Seal(p)); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
			loop := w.Intent("branches", "xdp_pass", world.XDP(w, "xdp_pass", "branches", "cn0").Programs...)
			loop.ObjectDigest = w.Object(object)
			loop = world.Tenant(loop, "area", "loop", 1, 100)
			runs, comes := world.Tenant(world.XDP(w, "xdp_count", "count_packets", "cn0"), "home", "runs", 2, 1), world.Tenant(world.XDP(w, "xdp_pass", "xdp_pass",
				"cn0"), "home", "comes", 3, 1)
			give(loop, runs)
			world.Until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, loop) && world.IsIn(a, runs) })
			give(comes)
			i := 0
			world.Until(t, "another application to be in", time.Minute, func() bool {
				i++
				give(change(w, loop, i)...)
				a.Reconcile(t.Context())
				return world.At(a, comes) == "cn0"
			})
			t.Logf("it is in after %d changes", i)
			world.Until(t, "all to come to rest", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, comes) && world.IsIn(a, runs) })
		})
	}
}
