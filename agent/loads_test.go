package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// slow is an application whose load takes the verifier seconds. Where it is in, it
// runs at no event of this machine: each run would take long too.
func slow(w *world.World) intent.Payload {
	var all []v1alpha1.Program
	for i := range 8 {
		all = append(all, v1alpha1.Program{Name: fmt.Sprint("slow_", i+1), Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "xdp_exception"}}})
	}
	return w.Intent("slow", "raw_tp_slow", all...)
}

// startSlow has an application loaded, and returns when its load was found to be long and has begun anew.
func startSlow(w *world.World, a *agent.Agent) intent.Payload {
	w.T.Helper()
	p := slow(w)
	begun := a.WatchLoads(p.UID)
	if err := a.Accept(w.Seal(p)); err != nil {
		w.T.Fatal(err)
	}
	world.Until(w.T, "the slow load to begin", time.Minute, func() bool { return begun() == 2 && loads(w, a, "slow") })
	return p
}

// loads reports whether an application waits for the verifier.
func loads(w *world.World, a *agent.Agent, name string) bool {
	s := world.StatusOf(a, name)
	return s != nil && s.Conditions[0].Reason == "Loading"
}

// TestASlowLoadDelaysNeitherHealingNorUnloading: what must not wait is done while
// the load still runs.
func TestASlowLoadDelaysNeitherHealingNorUnloading(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, _ := w.Start()
	gone := w.Intent("gone", "raw_tp_count", world.RawProgram())
	ca, _, _ := world.Three(w, a)
	if err := w.Accept(a, gone); err != nil {
		t.Fatal(err)
	}
	startSlow(w, a)
	select {
	case <-a.Reconciled():
	default:
	}
	l, err := link.NewFromID(link.ID(world.ChainsOf(t, a)[0].LinkID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := errors.Join(l.Detach(), a.Accept(w.Seal(w.Tombstone(gone)), w.Seal(w.Tombstone(ca)))); err != nil {
		t.Fatal(err)
	}
	for what, done := range map[string]func() bool{
		"the link that somebody severed to come back":                   func() bool { return !world.ChainsOf(t, a)[0].Severed },
		"the tombstone to act":                                          func() bool { return world.StatusOf(a, "gone") == nil },
		"the tombstone of a member, whose chain is loaded anew, to act": func() bool { return world.StatusOf(a, "ca") == nil },
		"the agent to go round":                                         func() bool { return len(a.Reconciled()) > 0 },
	} {
		world.Until(t, what, time.Minute, done)
	}
	if !loads(w, a, "slow") {
		t.Error("they waited for the load of another application")
	}
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
	if s := world.StatusOf(a, "slow"); s.Conditions[0].Status != "True" || s.Revision == "" {
		t.Errorf("the slow one: %+v", s)
	}
	if got := world.ChainOf(t, a); got != "cb:xdp_pass cc:xdp_gpl" {
		t.Errorf("chain is %q", got)
	}
}

// TestAMemberLeavesItsChainWhileAVersionThatMayNotRunIsReplaced has the verifier busy
// with what takes the place of another tenant's withdrawn version.
func TestAMemberLeavesItsChainWhileAVersionThatMayNotRunIsReplaced(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	o := w.Options()
	o.Node = "n"
	a := w.StartWith(o)
	ca, _, _ := world.Three(w, a)
	if err := w.Accept(a, w.Intent("slow", "raw_tp_count", world.RawProgram())); err != nil {
		t.Fatal(err)
	}
	startSlow(w, a)
	w.Give(a, w.Tombstone(ca))
	world.Until(t, "the tombstone to act", 2*time.Minute, func() bool { return world.StatusOf(a, "ca") == nil })
	if !loads(w, a, "slow") {
		t.Error("it waited for the load of another application")
	}
	if err := w.Accept(a); err != nil {
		t.Error(err)
	}
}

// TestALoadIsDroppedWhereItsApplicationIsWithdrawnMeanwhile: nothing of it is
// attached or pinned, and an agent that closes waits for it.
func TestALoadIsDroppedWhereItsApplicationIsWithdrawnMeanwhile(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, counts := observed(w, t)
	slow := startSlow(w, a)
	if err := w.Accept(a, w.Tombstone(slow)); err != nil {
		t.Fatal(err)
	}
	const loads = `skep_agent_load_duration_seconds{result="ok",what="revision"}`
	if counts()[loads] != 0 {
		t.Error("the tombstone waited for the load")
	}
	world.Until(t, "the load to end", 2*time.Minute, func() bool { return counts()[loads] == 1 })
	if err := w.Accept(a); err != nil || world.StatusOf(a, "slow") != nil {
		t.Errorf("Settled = %v, it is told as %+v", err, world.StatusOf(a, "slow"))
	}
	w.LeavesNothing()
	startSlow(w, a)
}

// loadOrder is a logger that keeps the order in which loads begin.
type loadOrder struct {
	mu    sync.Mutex
	names []string
}

// observe has an agent of the options log to it alone.
func (l *loadOrder) observe(o agent.Options) agent.Options {
	o.Log = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return o
}

func (l *loadOrder) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var one struct{ Msg, What string }
	if json.Unmarshal(bytes.TrimSpace(line), &one) == nil && one.Msg == "load begins" {
		l.names = append(l.names, one.What)
	}
	return len(line), nil
}

// begun are the loads that began so far, in their order.
func (l *loadOrder) begun() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.names)
}

func TestANamespaceWithManyLoadsDelaysAnotherByOne(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	order := &loadOrder{}
	a := w.Idle(order.observe(w.Options()))
	in := func(namespace, name string) {
		p := w.Intent(namespace+"-"+name, "raw_tp_count", world.RawProgram())
		p.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name}
		if err := a.Accept(w.Seal(p)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		in("many", fmt.Sprintf("app-%02d", i))
	}
	in("other", "app")
	a.Reconcile(t.Context())
	world.Until(t, "all to be loaded", time.Minute, func() bool {
		a.Reconcile(t.Context())
		return len(order.begun()) == 21
	})
	if i := slices.Index(order.begun(), "application uid-other-app"); i < 0 || i > 1 {
		t.Errorf("it is number %d of %s", i+1, strings.Join(order.begun(), " "))
	}
}

// TestLongLoadsOfManyOwnersAreBehindAShortOne: eight tenants come first, each with a program that takes the kernel seconds.
func TestLongLoadsOfManyOwnersAreBehindAShortOne(t *testing.T) {
	need.Kernel(t)
	for sentence, long := range map[string]func(*world.World) intent.Payload{
		"the verifier walks them for long":       slow,
		"the kernel replaces their instructions": divided,
		"the kernel makes large maps for them":   func(w *world.World) intent.Payload { return largeMap(w, 1<<20) },
	} {
		t.Run(sentence, func(t *testing.T) { behindAShortOne(t, long) })
	}
}

// divided is an application that the kernel takes a twentieth of a second or more to load, nearly all of it after the verifier's walk.
func divided(w *world.World) intent.Payload {
	attach := []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "xdp_exception"}}
	return w.Intent("divided", "raw_tp_divisions", v1alpha1.Program{Name: "divisions", Attach: attach})
}

// largeMap is an application with a map that has values for each CPU, of so many entries.
func largeMap(w *world.World, entries uint32) intent.Payload {
	p := w.Intent("large", "raw_tp_count", world.RawProgram())
	p.Maps = map[string]v1alpha1.Map{"counts": {MaxEntries: &entries}}
	return p
}

// TestMapsOfANamespaceAreMadeWithinBounds: what the kernel would make for seconds, which nothing ends, is not begun.
func TestMapsOfANamespaceAreMadeWithinBounds(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	large := largeMap(w, 8<<20)
	const says = "map counts denied by load/cost: the maps may take the kernel of this node"
	if err := w.Accept(a, world.Tenant(large, "team-a", "large", 1, 1)); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("Settled = %v", err)
	}
	small := world.Tenant(largeMap(w, 8<<10), "team-a", "small", 1, 1)
	w.Give(a, small)
	world.Until(t, "a smaller one to be in", time.Minute, func() bool { return world.IsIn(a, small) })
}

// TestARevocationWaitsForNoMap: nothing ends the making of a map, of the cluster's applications neither. The kernel makes maps where
// the load is until the tombstone has acted.
func TestARevocationWaitsForNoMap(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	gone := w.Intent("gone", "raw_tp_count", world.RawProgram())
	world.Must(t, w.Accept(a, gone))
	const entries = 1 << 20
	large := largeMap(w, entries)
	var begun atomic.Int64
	var acted atomic.Bool
	t.Cleanup(func() { acted.Store(true) })
	a.BeforeLoads(large.UID, func() {
		for long := begun.Add(1) == 2; long && !acted.Load(); {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: entries})
			if err != nil {
				t.Error(err)
				return
			}
			_ = m.Close()
		}
	})
	w.Give(a, large)
	world.Until(t, "the large map to be made", time.Minute, func() bool { return begun.Load() == 2 && loads(w, a, "large") })
	w.Give(a, w.Tombstone(gone))
	world.Until(t, "the tombstone to act", time.Minute, func() bool { return world.StatusOf(a, "gone") == nil })
	acted.Store(true)
	world.Until(t, "the large one to be in", 2*time.Minute, func() bool { return world.IsIn(a, large) })
}

// TestALongLoadOfWhatIsNotWholeIsIn: a map's pin is gone at the start, so that the revision is checked, and loaded again.
func TestALongLoadOfWhatIsNotWholeIsIn(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	w.Must(a, divided(w))
	before := world.Pins(w)
	stop()
	for _, pin := range before {
		if strings.HasPrefix(filepath.Base(pin), "m-") {
			world.Must(t, os.Remove(pin))
		}
	}
	if len(world.Pins(w)) == len(before) {
		t.Fatalf("no map is pinned: %v", before)
	}
	a, _ = w.Start()
	world.Until(t, "all pins to be back", time.Minute, func() bool {
		return slices.Equal(world.Pins(w), before) && world.StatusOf(a, "divided") != nil && !loads(w, a, "divided")
	})
}

// behindAShortOne: each long load begins twice, the second time among long ones, which only the time of the first walks has in
// front of a short one that came after them.
func behindAShortOne(t *testing.T, payload func(*world.World) intent.Payload) {
	w := world.New(t)
	order := &loadOrder{}
	a := w.Idle(order.observe(w.Options()))
	var long []string
	for i := range 8 {
		p := world.Tenant(payload(w), fmt.Sprint("many-", i), "long", 1, 1)
		world.Must(t, a.Accept(w.Seal(p)))
		long = append(long, "application "+p.UID)
	}
	a.Reconcile(t.Context())
	short := world.Tenant(w.Intent("short", "raw_tp_count", world.RawProgram()), "other", "short", 2, 1)
	world.Must(t, a.Accept(w.Seal(short)))
	a.Reconcile(t.Context())
	before := len(order.begun())
	world.Until(t, "the short one to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return world.IsIn(a, short) })
	begun := order.begun()
	at := slices.Index(begun, "application "+short.UID)
	if at < 0 {
		t.Fatalf("its load was not logged: %q", begun)
	}
	at = max(at, before)
	again := slices.DeleteFunc(slices.Clone(long), func(name string) bool {
		return !slices.Contains(begun[before:at], name) || timesIn(begun[:at], name) < 2
	})
	if len(again) > 4 {
		t.Errorf("%q began among long ones before it: %q, and %q before it was known", again, begun[before:], begun[:before])
	}
	world.Until(t, "a second load of each long one", 3*time.Minute, func() bool {
		a.Reconcile(t.Context())
		return !slices.ContainsFunc(long, func(name string) bool { return timesIn(order.begun(), name) < 2 })
	})
}

func timesIn(names []string, name string) int {
	return len(slices.DeleteFunc(slices.Clone(names), func(one string) bool { return one != name }))
}

// TestALinkIsHealedWithoutALoad: the chain that it ran is in the kernel still.
func TestALinkIsHealedWithoutALoad(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, counts := observed(w, t)
	world.Three(w, a)
	loads := func() float64 { return counts()[`skep_agent_load_duration_seconds{result="ok",what="chain"}`] }
	before := loads()
	l, err := link.NewFromID(link.ID(world.ChainsOf(t, a)[0].LinkID))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	was := world.ChainsOf(t, a)[0].ProgramID
	for _, change := range []func() error{
		func() error { return l.Update(world.ForeignProgram(t, ebpf.XDP)) },
		l.Detach,
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		world.Until(t, "the link to be healed", time.Minute, func() bool {
			now := world.ChainsOf(t, a)[0]
			return !now.Severed && now.ProgramID == was
		})
	}
	if n := loads() - before; n != 0 {
		t.Errorf("it took %v loads", n)
	}
}
