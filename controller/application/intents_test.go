package application

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/programs"
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
	if again := b.reconcile(second.Identity()); again.RequeueAfter != settle {
		t.Errorf("it is looked at again after %s", again.RequeueAfter)
	}
	if p := b.intent(second); p == nil || p.Tombstone {
		t.Errorf("of the second one, which lives, %+v is sealed", p)
	}
	if p := b.intent(first); p.Serial != before {
		t.Errorf("of the first one, which is gone, %+v is sealed", p)
	}
}

func TestWhatIsCreatedAnewIsJudgedBeforeItsPredecessorGoes(t *testing.T) {
	for name, c := range map[string]struct {
		signers []string
		down    bool
		// revoked tells that nobody who signed the predecessor counts any more.
		revoked bool
		// kept tells that the predecessor runs on, sealed that its successor does.
		kept, sealed bool
	}{
		"the registry is out of reach":                          {[]string{"team-a"}, true, false, true, false},
		"the registry is out of reach, and a signer is revoked": {[]string{"team-a"}, true, true, false, false},
		"it is allowed": {[]string{"team-a"}, false, false, false, true},
		"it is denied":  {nil, false, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			first := b.application("app")
			b.reconcile(first.Identity())
			if err := b.api.Delete(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			ref, _ := b.Push("app:v2", programs.Object("tracepoint_count"), c.signers...)
			if c.signers == nil {
				ref, _ = b.Push("unsigned:v1", append(programs.Object("tracepoint_count"), 0))
			}
			second := defined("app", ref)
			b.create(second)
			b.Down.Store(c.down)
			if c.revoked {
				signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
				b.change(signer, func() { signer.Spec.Revoked = true })
				b.refresh()
			}
			if _, err := b.Reconcile(t.Context(), second.Identity()); (err != nil) != c.down {
				t.Fatal(err)
			}
			if p := b.intent(first); p.Tombstone == c.kept {
				t.Errorf("of the predecessor %+v is sealed", p)
			}
			if p := b.intent(second); (p != nil && !p.Tombstone) != c.sealed {
				t.Errorf("of the successor %+v is sealed", p)
			}
		})
	}
}

func TestATombstoneIsKeptForNodesThatMayBeBack(t *testing.T) {
	const day = keepTombstone + time.Second
	for name, c := range map[string]struct {
		age  time.Duration
		says v1alpha1.NodeState
		// untold tells that the node's report has no room for all.
		untold int32
		kept   bool
	}{
		"no node says anything, since the one that runs it is gone": {time.Hour, "", 0, true},
		"every node unloaded it, a moment ago":                      {0, v1alpha1.NodeRemoved, 0, true},
		"every node unloaded it, a day ago":                         {day, v1alpha1.NodeRemoved, 0, false},
		"no node says anything after a day":                         {day, "", 0, false},
		"a node is away with it":                                    {7 * day, v1alpha1.NodeLoaded, 0, true},
		"a node may have it, which has no room to say":              {7 * day, "", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			b.reconcile(app.Identity())
			if err := b.api.Delete(t.Context(), app); err != nil {
				t.Fatal(err)
			}
			b.reconcile(app.Identity())
			if p := b.intent(app); p == nil || !p.Tombstone {
				t.Fatalf("sealed %+v", p)
			}
			n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			n.Status.Counts.Untold = c.untold
			if c.says != "" {
				n.Status.Applications = append(n.Status.Applications, b.says(app, c.says))
			}
			b.create(n)
			b.clock = b.clock.Add(c.age)
			again := b.reconcile(app.Identity())
			if kept := b.intent(app) != nil; kept != c.kept || kept != (again.RequeueAfter > 0) {
				t.Errorf("it is kept: %v, and looked at again after %s", kept, again.RequeueAfter)
			}
		})
	}
}
