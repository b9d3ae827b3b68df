package policies

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestTheStartOfAWorkerIsNoTimeOfANamespace has a clock that goes an hour ahead when the
// worker starts which evaluates a namespace's policies.
func TestTheStartOfAWorkerIsNoTimeOfANamespace(t *testing.T) {
	var engine atomic.Pointer[Engine]
	now := func() time.Time {
		at := time.Unix(1e9, 0)
		e := engine.Load()
		if e == nil {
			return at
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.busy) > 0 || len(e.pools.tenants.idle) > 0 {
			at = at.Add(time.Hour)
		}
		return at
	}
	e := NewEngine(EngineOptions{Now: now})
	t.Cleanup(e.Close)
	e.patience = time.Minute
	var list []Policy
	for i := range maxBatch + 4 {
		list = append(list, Policy{Name: fmt.Sprint("p", i), Namespace: "team", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\nwarn contains \"so\""}})
	}
	set, err := e.Compile(t.Context(), list, Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	engine.Store(e)
	var in Input
	in.Application.Metadata.Namespace = "team"
	d, err := set.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range d.Denied {
		if r.Failed {
			t.Errorf("denied: %+v", r)
		}
	}
}

// TestWhatDiesWhileItCompilesIsNotTriedInALoop has somebody end every worker that
// compiles a policy.
func TestWhatDiesWhileItCompilesIsNotTriedInALoop(t *testing.T) {
	var past atomic.Int64
	e := NewEngine(EngineOptions{Now: func() time.Time { return time.Unix(1e9, 0).Add(time.Duration(past.Load())) }})
	t.Cleanup(e.Close)
	var rego strings.Builder
	rego.WriteString("package skep.policy\n\nv30 := 1\n\ndeny contains \"x\" if v0.a.b.a == 2\n")
	for i := range 30 {
		fmt.Fprintf(&rego, "v%d := {\"a\": v%d, \"b\": v%d}\n", i, i+1, i+1)
	}
	p := Policy{Name: "p", Namespace: "team", Spec: v1alpha1.BpfPolicySpec{Rego: rego.String()}}
	proved := make(chan error, 1)
	prove := func() {
		go func() {
			proven, err := e.Prove(t.Context(), p)
			proved <- errors.Join(err, proven.Err())
		}()
	}
	prove()
	var err error
	for done := false; !done; {
		select {
		case err = <-proved:
			done = true
		case <-time.After(time.Millisecond):
			e.mu.Lock()
			for w := range e.busy {
				w.kill()
			}
			e.mu.Unlock()
		}
	}
	var fault *CompileError
	if err == nil || errors.As(err, &fault) {
		t.Fatalf("while workers are killed: %v", err)
	}
	dropped := e.dropped
	prove()
	if err := <-proved; err == nil || errors.As(err, &fault) || e.dropped != dropped {
		t.Errorf("at once: %d more workers ended, %v", e.dropped-dropped, err)
	}
	past.Store(int64(time.Hour))
	prove()
	if err := <-proved; !errors.As(err, &fault) {
		t.Errorf("later: %v", err)
	}
}

func TestANamespaceHasNoMoreThanItsShare(t *testing.T) {
	pools := newPools(4)
	for name, p := range map[string]*pool{"the cluster's policies": pools.cluster, "its own": pools.tenants, "its own, of large documents": pools.tenantsLarge} {
		var leaves []func()
		for range p.share {
			leave, err := p.enter(t.Context(), "team-a")
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		entered := make(chan func())
		go func() {
			leave, err := p.enter(t.Context(), "team-a")
			if err != nil {
				t.Error(err)
			}
			entered <- leave
		}()
		for waits := false; !waits; waits = p.namespaces.Users()["team-a"] > int(p.share) {
			select {
			case <-entered:
				t.Fatalf("%s: it has more than its share", name)
			case <-time.After(time.Millisecond):
			}
		}
		if p != pools.tenantsLarge {
			leave, err := p.enter(t.Context(), "team-b")
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
		for _, leave := range leaves {
			leave()
		}
		(<-entered)()
	}
}
