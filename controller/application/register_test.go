package application

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
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
			if _, err := b.Reconcile(t.Context(), c.id); errors.Is(err, errNobody) == c.real {
				t.Errorf("it says %v", err)
			}
		})
	}
	if diff := cmp.Diff(before, b.intent(app)); diff != "" {
		t.Errorf("the intent of the real one (-before +now):\n%s", diff)
	}
}
