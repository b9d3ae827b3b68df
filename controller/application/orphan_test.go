package application

import (
	"context"
	"errors"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// vanish has an application go with its CRD, which is made anew.
func (b *bench) vanish(app *v1alpha1.ClusterBpfApplication) {
	b.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "clusterbpfapplications." + v1alpha1.Group}}
	if err := errors.Join(b.api.Delete(b.t.Context(), app.DeepCopy()), b.api.Delete(b.t.Context(), crd)); err != nil {
		b.t.Fatal(err)
	}
	b.create(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name, UID: "made-anew"}})
	b.reconcile(app.Identity())
}

// distrust revokes signers at once.
func (b *bench) distrust(teams ...string) {
	b.t.Helper()
	for _, team := range teams {
		signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: team}}
		b.change(signer, func() { signer.Spec.Revoked = true })
	}
	b.refresh()
}

// outrun has the nodes that the newest version has not come to say that they run a
// newer one.
func (f *fleet) outrun() {
	f.t.Helper()
	p, said := f.intent(f.app), f.says(f.app, v1alpha1.NodeLoaded)
	said.Revision, said.Serial = "other", p.Serial+1000
	for _, name := range f.nodes {
		if !p.Reaches(name) {
			f.nodeSays(name, said)
		}
	}
}

// TestARevocationTakesOfWhatIsNotJudgedNoMoreThanItsOwn has signers revoked in the
// middle of a rollout whose application is gone, or whose successor is out of reach.
func TestARevocationTakesOfWhatIsNotJudgedNoMoreThanItsOwn(t *testing.T) {
	leave := map[string]func(*fleet){
		"it vanished with its CRD": func(f *fleet) { f.vanish(f.app) },
		"its successor cannot be evaluated": func(f *fleet) {
			if err := f.api.Delete(t.Context(), f.app.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			f.create(defined("app", f.build(9, "team-c")))
			f.Down.Store(true)
		},
	}
	for sentence, c := range map[string]struct {
		do      func(*fleet)
		revoked []string
		want    string
	}{
		"the version before":             {func(*fleet) {}, []string{"team-a"}, "v2 on 1"},
		"the newest":                     {func(*fleet) {}, []string{"team-b"}, "v2 on 0, before v1"},
		"both":                           {func(*fleet) {}, []string{"team-a", "team-b"}, "gone"},
		"neither":                        {func(*fleet) {}, []string{"team-c"}, "v2 on 1, before v1"},
		"what nodes may go on with":      {func(f *fleet) { f.version(2) }, []string{"team-b"}, "v3 on 1, before v1"},
		"the newest, and what is beside": {func(f *fleet) { f.version(2) }, []string{"team-b", "team-c"}, "v3 on 0, before v1"},
		"what is everywhere":             {func(f *fleet) { f.everywhere(1) }, []string{"team-b"}, "gone"},
		"the version before, while nodes have seen a newer intent": {(*fleet).outrun, []string{"team-a"}, "v2 on 5"},
		"what nodes may go on with, while they have seen a newer intent": {func(f *fleet) { f.version(2); f.outrun() }, []string{"team-b"},
			"v3 on 1, before v1, withdrawn v3"},
	} {
		for how, leave := range leave {
			t.Run(sentence+": "+how, func(t *testing.T) {
				f := newFleet(t)
				f.answers(v1alpha1.NodeLoaded)
				f.version(1)
				c.do(f)
				leave(f)
				f.distrust(c.revoked...)
				for range 3 {
					f.clock = f.clock.Add(time.Second)
					_, _ = f.Reconcile(t.Context(), f.app.Identity())
				}
				p := f.intent(f.app)
				if f.say(p) != c.want {
					t.Errorf("%s, want %s", f.say(p), c.want)
				}
				f.clock = f.clock.Add(time.Minute)
				_, _ = f.Reconcile(t.Context(), f.app.Identity())
				if again := f.intent(f.app); again.Serial != p.Serial {
					t.Errorf("it is sealed again and again: %s", f.say(again))
				}
			})
		}
	}
}

// TestAVersionThatWasTakenAwayComesBackToNoNode has its signer revoked, and then that
// of what nodes may go on with, while nodes have seen a newer intent.
func TestAVersionThatWasTakenAwayComesBackToNoNode(t *testing.T) {
	for sentence, leave := range map[string]func(*fleet){
		"it vanished with its CRD": func(f *fleet) { f.vanish(f.app) },
		"a policy keeps the version before, and would not admit it": func(f *fleet) {
			policy := denies(v1alpha1.RunningKeep, "team-a")
			policy.Spec.Rego += notSigned
			f.create(policy)
			f.refresh()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.version(1)
			f.version(2)
			leave(f)
			for _, c := range []struct{ team, want string }{
				{"team-c", "v3 on 0, before v1, withdrawn v2"}, {"team-b", "v3 on 0, before v1"},
			} {
				f.outrun()
				f.distrust(c.team)
				f.clock = f.clock.Add(time.Second)
				f.reconcile(f.app.Identity())
				if p := f.intent(f.app); f.say(p) != c.want {
					t.Errorf("without %s: %s, want %s", c.team, f.say(p), c.want)
				}
			}
		})
	}
}

// TestAVersionThatCameToNoNodeYetUnloadsNothing has a version sealed while all nodes
// are away, which come back with a newer one that was lost.
func TestAVersionThatCameToNoNodeYetUnloadsNothing(t *testing.T) {
	for sentence, leave := range map[string]func(*fleet){
		"its application is there": func(*fleet) {},
		"it vanished with its CRD": func(f *fleet) { f.vanish(f.app) },
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.Agents = func(context.Context) (runs map[string]bool, gone map[string]time.Time, err error) {
				return nil, nil, nil
			}
			if p := f.version(1); f.say(p) != "v2 on 0, before v1" {
				t.Fatalf("while all are away: %s", f.say(p))
			}
			f.Agents = nil
			leave(f)
			f.outrun()
			f.distrust("team-a")
			f.clock = f.clock.Add(time.Second)
			f.reconcile(f.app.Identity())
			if p := f.intent(f.app); f.say(p) != "v2 on 5" {
				t.Errorf("%s, want v2 on 5", f.say(p))
			}
		})
	}
}
