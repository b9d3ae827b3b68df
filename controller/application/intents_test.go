package application

import (
	"context"
	"errors"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// showing has the cache show an application as it was; nil shows it as it is.
func (b *bench) showing(was *v1alpha1.ClusterBpfApplication) {
	b.cached.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if app, ok := o.(*v1alpha1.ClusterBpfApplication); ok && was != nil {
			was.DeepCopyInto(app)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}
}

// again deletes an application and creates another one of its name.
func (b *bench) again(app *v1alpha1.ClusterBpfApplication) *v1alpha1.ClusterBpfApplication {
	b.t.Helper()
	if err := b.api.Delete(b.t.Context(), app); err != nil {
		b.t.Fatal(err)
	}
	again := defined(app.Name, app.Spec.Bytecode.Image)
	b.create(again)
	return again
}

func TestACacheThatLagsBuriesNothingThatLives(t *testing.T) {
	b := newBench(t)
	first := b.application("app")
	b.reconcile(first.Identity())
	second := b.again(first)
	b.reconcile(second.Identity())
	if p := b.intent(first); p == nil || !p.Tombstone || p.Reason != tookItsPlace {
		t.Errorf("of the first one %+v is sealed", p)
	}
	b.clock = b.clock.Add(time.Second)
	before := b.intent(first).Serial

	// As after a change of leader, with informers on two API servers.
	b.showing(first)
	if _, err := b.Reconcile(t.Context(), second.Identity()); !errors.Is(err, errBehind) {
		t.Errorf("it says %v", err)
	}
	if p := b.intent(second); p == nil || p.Tombstone {
		t.Errorf("of the second one, which lives, %+v is sealed", p)
	}
	if p := b.intent(first); p.Serial != before {
		t.Errorf("of the first one, which is gone, %+v is sealed", p)
	}
}
