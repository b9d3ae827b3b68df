package application

import (
	"context"
	"errors"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
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
	if again := b.reconcile(second.Identity()); again.RequeueAfter != reportSpacing {
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
			n.Status.Counts.NotReported = c.untold
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

func TestACacheThatHasYetToShowAnIntentIsLookedAtAgain(t *testing.T) {
	for sentence, shows := range map[string]bool{"it never does": false, "it does in between": true} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			before := f.version(1)
			f.cached.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, ok := list.(*v1alpha1.BpfIntentList); ok {
					return nil
				}
				return c.List(ctx, list, opts...)
			}
			f.cached.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, ok := o.(*v1alpha1.BpfIntent); ok && !shows {
					return apierrors.NewNotFound(schema.GroupResource{Resource: "bpfintents"}, key.Name)
				}
				return c.Get(ctx, key, o, opts...)
			}
			if again := f.reconcile(f.app.Identity()); again.RequeueAfter != reportSpacing {
				t.Errorf("it is looked at again after %s", again.RequeueAfter)
			}
			if p := f.intent(f.app); p.Serial != before.Serial {
				t.Errorf("sealed over: %s", f.say(p))
			}
		})
	}
}

// TestAKeyThatIsTrustedLateFindsWhatItSealed has the cache take an intent in before
// the key that sealed it is trusted.
func TestAKeyThatIsTrustedLateFindsWhatItSealed(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	before := f.version(1)
	trusted, others := f.Intents.Keys, newRing(t).Keys
	f.cached.List = func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, ok := list.(*v1alpha1.BpfIntentList); ok {
			f.Intents.Keys = others
			defer func() { f.Intents.Keys = trusted }()
		}
		return c.List(ctx, list, opts...)
	}
	again := f.reconcile(f.app.Identity())
	if p := f.intent(f.app); p.Serial != before.Serial || again.RequeueAfter == reportSpacing {
		t.Errorf("%s is sealed, and looked at again after %s", f.say(p), again.RequeueAfter)
	}
}

func TestATombstoneThatWasOvertakenIsSealedOverInTime(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	if err := b.api.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	b.reconcile(app.Identity())
	said := b.says(app, v1alpha1.NodeLoaded)
	said.Revision, said.Serial = "r", said.Serial+1000
	b.node("one", said)
	// It was sealed a moment ago, and is sealed again no sooner than allowed.
	b.clock = b.clock.Add(minBetween / 2)
	again := b.reconcile(app.Identity())
	if p := b.intent(app); p.Serial > said.Serial || again.RequeueAfter > minBetween {
		t.Fatalf("serial %d, and is looked at again after %s", p.Serial, again.RequeueAfter)
	}
	b.clock = b.clock.Add(again.RequeueAfter)
	b.reconcile(app.Identity())
	if p := b.intent(app); !p.Tombstone || p.Serial <= said.Serial {
		t.Errorf("a node has seen %d: %+v", said.Serial, p)
	}
}

// TestATombstoneIsSealedOverWhileAVersionIsHeldBack has an undo that cannot be done
// keep the next version from being sealed over a tombstone that nodes deny.
func TestATombstoneIsSealedOverWhileAVersionIsHeldBack(t *testing.T) {
	f := newFleet(t)
	p := f.revoke("team-a")
	f.change(f.app, func() { f.app.Spec.Bytecode.Image, f.app.Generation = f.versions[1], f.app.Generation+1 })
	f.undo()
	said := f.says(f.app, v1alpha1.NodeLoaded)
	said.Revision, said.Serial = "r", p.Serial+1000
	f.nodeSays(f.nodes[0], said)
	f.clock = f.clock.Add(time.Minute)
	now := f.settles()
	if !now.Tombstone || now.Serial <= said.Serial || now.Reason != p.Reason || f.state().State != v1alpha1.RolloutStopped {
		t.Errorf("serial %d, and a node has seen %d: %s; %+v", now.Serial, said.Serial, f.say(now), f.state())
	}
	if again := f.settles(); again.Serial != now.Serial {
		t.Errorf("it is sealed again and again: %d", again.Serial)
	}
}

// TestARevocationFindsWhatVanishedWithItsCRD: nothing evaluates it any more, and its
// signers are in the seal.
func TestARevocationFindsWhatVanishedWithItsCRD(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "clusterbpfapplications." + v1alpha1.Group}}
	if err := errors.Join(b.api.Delete(t.Context(), app), b.api.Delete(t.Context(), crd)); err != nil {
		t.Fatal(err)
	}
	crd = crd.DeepCopy()
	crd.ResourceVersion, crd.UID = "", "made-anew"
	b.create(crd)
	b.reconcile(app.Identity())
	if p := b.intent(app); p.Tombstone {
		t.Fatalf("it vanished with its CRD, and %+v is sealed", p)
	}
	signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
	b.change(signer, func() { signer.Spec.Revoked = true })
	b.refresh()
	b.reconcile(app.Identity())
	if p := b.intent(app); !p.Tombstone || p.Reason != "every signer it was admitted by is revoked: team-a" {
		t.Errorf("its signer is revoked, and %+v is sealed", p)
	}
}
