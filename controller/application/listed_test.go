package application

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestAReconcileListsEachKindOnce counts what one reconcile lists from the cache, whatever
// its steps do.
func TestAReconcileListsEachKindOnce(t *testing.T) {
	once := map[string]int{"*v1.NodeList": 1, "*v1alpha1.BpfNodeList": 1, "*v1alpha1.BpfIntentList": 1}
	for sentence, before := range map[string]func(*fleet){
		"the application is at rest": func(f *fleet) { f.everywhere(1) },
		"a version is new": func(f *fleet) {
			f.change(f.app, func() { f.app.Spec.Bytecode.Image = f.versions[1]; f.app.Generation++ })
		},
		"a step is done": func(f *fleet) {
			p := f.version(1)
			for _, name := range f.nodes {
				if p.Reaches(name) {
					f.answer(name, v1alpha1.NodeLoaded)
				}
			}
		},
		"the version matches no node": func(f *fleet) {
			f.version(1)
			f.change(f.app, func() { choosesNobody(&f.app.Spec); f.app.Spec.Bytecode.Image = f.versions[2]; f.app.Generation++ })
		},
		"it is undone": func(f *fleet) { f.version(1); f.undo() },
		"it is deleted, and its tombstone is old": func(f *fleet) {
			if err := f.api.Delete(f.t.Context(), f.app); err != nil {
				f.t.Fatal(err)
			}
			f.reconcile(f.app.Identity())
			f.clock = f.clock.Add(keepTombstone + time.Second)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			before(f)
			f.clock = f.clock.Add(time.Second)
			listed := map[string]int{}
			f.cached.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				listed[fmt.Sprintf("%T", list)]++
				return c.List(ctx, list, opts...)
			}
			f.reconcile(f.app.Identity())
			if diff := cmp.Diff(once, listed); diff != "" {
				t.Error(diff)
			}
		})
	}
}
