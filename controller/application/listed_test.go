package application

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image/access"
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

// TestAStepRestsOnWhatNodesReportAfterTheEvaluation has a node fail the version that is being
// rolled out while a slow evaluation is under way.
func TestAStepRestsOnWhatNodesReportAfterTheEvaluation(t *testing.T) {
	for sentence, c := range map[string]struct {
		takes time.Duration
		fails bool
		moves bool
	}{
		"it is quick":                          {0, false, true},
		"it is slow":                           {20 * time.Second, false, true},
		"it is slow, and a node fails in time": {20 * time.Second, true, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			p := f.version(1)
			var reached []string
			for _, name := range f.nodes {
				if p.Reaches(name) {
					reached = append(reached, name)
					f.answer(name, v1alpha1.NodeLoaded)
				}
			}
			before := f.reaches(p)
			f.Images = func(context.Context, v1alpha1.Application) *access.Reader {
				f.clock = f.clock.Add(c.takes)
				if c.fails {
					f.answer(reached[0], v1alpha1.NodeFailed)
				}
				return nil
			}
			f.clock = f.clock.Add(time.Minute)
			f.reconcile(f.app.Identity())
			if after := f.reaches(f.intent(f.app)); (after > before) != c.moves {
				t.Errorf("it was rolled out to %d nodes, and is to %d", before, after)
			}
		})
	}
}

// TestWhatIsGoneIsUnloadedWithoutNodes has the list of nodes fail, which unloading does not
// need.
func TestWhatIsGoneIsUnloadedWithoutNodes(t *testing.T) {
	f := newFleet(t)
	f.everywhere(1)
	if err := f.api.Delete(t.Context(), f.app); err != nil {
		t.Fatal(err)
	}
	f.cached.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, nodes := list.(*corev1.NodeList); nodes {
			return errors.New("the cache of nodes is not there")
		}
		return c.List(ctx, list, opts...)
	}
	f.reconcile(f.app.Identity())
	if p := f.intent(f.app); !p.Tombstone {
		t.Errorf("it is not unloaded: %+v", p)
	}
}
