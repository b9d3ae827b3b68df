package agent_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAVersionThatMayNotRunIsReplacedInItsChainBeforeOtherLoads has a version of a
// member withdrawn while the verifier is busy with another tenant's load, and another
// member move.
func TestAVersionThatMayNotRunIsReplacedInItsChainBeforeOtherLoads(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	o := w.options()
	o.Node = "n"
	a := w.startWith(o)
	if err := w.accept(a, w.member("ca", "xdp_count", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 2)); err != nil {
		t.Fatal(err)
	}
	held := w.intent("slow", "raw_tp_count", rawProgram())
	let := a.HoldLoads(held.UID)
	t.Cleanup(let)
	w.give(a, held)
	until(t, "the other load to begin", time.Minute, func() bool { return a.IsLoading() && w.loads(a, "slow") })
	next, moved := w.member("ca", "xdp_count_v2", "count_packets", 1), w.member("cb", "xdp_pass", "xdp_pass", 0)
	a.Batch(func() {
		if err := a.Accept(w.seal(next), w.seal(moved)); err != nil {
			t.Error(err)
		}
	})
	until(t, "the version to be replaced", time.Minute, func() bool { return isAt(a, next) })
	if !w.loads(a, "slow") {
		t.Error("it waited for the load of another application")
	}
	if got := chainOf(t, a); got != "ca:count_packets cb:xdp_pass" {
		t.Errorf("chain is %q", got)
	}
	let()
	if err := w.accept(a); err != nil {
		t.Error(err)
	}
	if got := chainOf(t, a); got != "cb:xdp_pass ca:count_packets" {
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
	for sentence, change := range map[string]func(w *world, p intent.Payload, i int) []intent.Payload{
		"its priority": func(_ *world, p intent.Payload, i int) []intent.Payload {
			return []intent.Payload{tenant(p, "area", "loop", 1, int32(100+i%50))}
		},
		"its variables": func(_ *world, p intent.Payload, i int) []intent.Payload {
			p.Variables = map[string]apiextensionsv1.JSON{"turns": {Raw: fmt.Append(nil, 4000+i)}}
			return []intent.Payload{p}
		},
		"where it runs": func(_ *world, p intent.Payload, i int) []intent.Payload {
			p.Programs = slices.Clone(p.Programs)
			p.Programs[0].Attach = on("xdp", []string{"cn0", "cn1"}[i%2])
			return []intent.Payload{p}
		},
		"who it is": func(w *world, p intent.Payload, i int) []intent.Payload {
			was := tenant(p, "area", fmt.Sprint("loop", i-1), 1, 100)
			return []intent.Payload{tenant(p, "area", fmt.Sprint("loop", i), int64(10+i), 100), w.tombstone(was)}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			veth(t, "cn0", "cn1")
			a := w.idle(w.options())
			give := func(all ...intent.Payload) {
				t.Helper()
				a.Batch(func() {
					for _, p := range all {
						w.serial++
						p.Serial = w.serial
						if err := a.Accept(w.seal(p)); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
			loop := w.intent("branches", "xdp_pass", w.xdp("xdp_pass", "branches", "cn0").Programs...)
			loop.ObjectDigest = w.object(object)
			loop = tenant(loop, "area", "loop", 1, 100)
			runs, comes := tenant(w.xdp("xdp_count", "count_packets", "cn0"), "home", "runs", 2, 1), tenant(w.xdp("xdp_pass", "xdp_pass", "cn0"), "home", "comes", 3, 1)
			give(loop, runs)
			until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, loop) && isIn(a, runs) })
			give(comes)
			i := 0
			until(t, "another application to be in", time.Minute, func() bool {
				i++
				give(change(w, loop, i)...)
				a.Reconcile(t.Context())
				return at(a, comes) == "cn0"
			})
			t.Logf("it is in after %d changes", i)
			until(t, "all to come to rest", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, comes) && isIn(a, runs) })
		})
	}
}
