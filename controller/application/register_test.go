package application

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
)

func TestWhatANodeMadeUpIsNoApplication(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	before := b.intent(app)
	b.clock = b.clock.Add(time.Second)
	for name, c := range map[string]struct {
		id   v1alpha1.Identity
		real bool
	}{
		"a cluster's application":             {v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, true},
		"a namespace's application":           {v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: "app"}, true},
		"a kind that there is not":            {v1alpha1.Identity{Kind: "Foo", Name: "app"}, false},
		"no kind":                             {v1alpha1.Identity{Name: "app"}, false},
		"a cluster's in a namespace":          {v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Namespace: "team", Name: "app"}, false},
		"a namespace's application in no one": {v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Name: "app"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			said := &v1alpha1.BpfNode{Status: v1alpha1.BpfNodeStatus{Applications: []v1alpha1.NodeApplication{
				{Kind: c.id.Kind, Namespace: c.id.Namespace, Name: c.id.Name, UID: "uid"},
			}}}
			var want []v1alpha1.Identity
			if c.real {
				want = append(want, c.id)
			}
			if diff := cmp.Diff(want, changed(&v1alpha1.BpfNode{}, said)); diff != "" {
				t.Errorf("what is looked at (-want +got):\n%s", diff)
			}
			if _, err := b.Reconcile(t.Context(), c.id); errors.Is(err, errNoSuchApplication) == c.real {
				t.Errorf("it says %v", err)
			}
		})
	}
	if diff := cmp.Diff(before, b.intent(app)); diff != "" {
		t.Errorf("the intent of the real one (-before +now):\n%s", diff)
	}
}

// counted is a queue that counts what is asked for.
type counted struct {
	queue
	asked chan v1alpha1.Identity
}

func (q counted) Add(id v1alpha1.Identity) { q.asked <- id }

func TestAThousandNodesAreOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const nodes = 1000
		w := watches{client: &informers{intents: []v1alpha1.BpfIntent{
			{Spec: v1alpha1.BpfIntentSpec{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}}},
		}}}
		everything, q := make(signal, 1), counted{asked: make(chan v1alpha1.Identity, nodes)}
		if err := w.all(everything, func() policy.Where { return everywhere })(ctx, q); err != nil {
			t.Fatal(err)
		}
		for range nodes {
			everything.Create(ctx, event.CreateEvent{}, q)
			synctest.Wait()
		}
		<-time.After(2 * reportSpacing)
		if n := len(q.asked); n != 1 {
			t.Errorf("the application is asked for %d times", n)
		}
		everything.raise()
		<-time.After(2 * reportSpacing)
		if n := len(q.asked); n != 2 {
			t.Errorf("after another change it was asked for %d times", n)
		}
	})
}

// TestAPolicyOfANamespaceHasItsOwnEvaluatedAgain asks for applications where policies
// changed, and for no others.
func TestAPolicyOfANamespaceHasItsOwnEvaluatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ids := []v1alpha1.Identity{{Kind: v1alpha1.KindClusterBpfApplication, Name: "cluster"}}
		for _, namespace := range []string{"a", "b", "c"} {
			ids = append(ids, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: "app"})
		}
		of := &informers{}
		for _, id := range ids {
			of.intents = append(of.intents, v1alpha1.BpfIntent{Spec: v1alpha1.BpfIntentSpec{Application: id}})
		}
		w, rules := watches{client: of}, changes{raised: make(signal, 1)}
		q := counted{asked: make(chan v1alpha1.Identity, 2*len(ids))}
		if err := w.all(rules.raised, rules.take)(ctx, q); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			changes []policy.Where
			want    []v1alpha1.Identity
		}{
			{[]policy.Where{{Namespaces: map[string]bool{"b": true}}}, ids[2:3]},
			{[]policy.Where{{Namespaces: map[string]bool{"a": true}}, {Namespaces: map[string]bool{"c": true}}}, []v1alpha1.Identity{ids[1], ids[3]}},
			{[]policy.Where{{Namespaces: map[string]bool{"a": true}}, everywhere}, ids},
		} {
			for _, where := range c.changes {
				rules.add(where)
			}
			<-time.After(2 * reportSpacing)
			var got []v1alpha1.Identity
			for len(q.asked) > 0 {
				got = append(got, <-q.asked)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", c.changes, diff)
			}
		}
	})
}
