package application

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// comesBack are the ways to a version that chooses no node.
var comesBack = map[string]func(*fleet){
	"it is reverted": func(f *fleet) {
		f.edit(func(s *v1alpha1.BpfApplicationSpec) { choosesNobody(s); s.Bytecode.Image = f.versions[0] })
	},
	"it is undone": func(f *fleet) { f.undo() },
}

// TestAVersionForNoNodeComesBackWhereNothingRuns has nothing to protect.
func TestAVersionForNoNodeComesBackWhereNothingRuns(t *testing.T) {
	for sentence, c := range map[string]struct {
		next func(*v1alpha1.BpfApplicationSpec)
		// failed tells that the nodes could not have the next version.
		failed bool
	}{
		"the one after it is for no node either": {choosesNobody, false},
		"the one after it fails everywhere":      {func(s *v1alpha1.BpfApplicationSpec) { s.NodeSelector = nil }, true},
	} {
		for how, bring := range comesBack {
			t.Run(sentence+": "+how, func(t *testing.T) {
				f := newFleet(t)
				f.app = defined("second", f.versions[0])
				choosesNobody(&f.app.Spec)
				f.create(f.app)
				f.settles()
				f.edit(func(s *v1alpha1.BpfApplicationSpec) { c.next(s); s.Bytecode.Image = f.versions[1] })
				if f.state().State == v1alpha1.RolloutNoMatchingNodes {
					f.resume()
				}
				if c.failed {
					f.failsEverywhere()
				}
				if p := f.settles(); f.say(p) != "v2 on 5, before v1" {
					t.Fatalf("before: %s; %+v", f.say(p), f.state())
				}
				bring(f)
				if p := f.settles(); f.say(p) != "v1 on 5, withdrawn v2" || f.state().State == v1alpha1.RolloutNoMatchingNodes {
					t.Errorf("%s; %+v", f.say(p), f.state())
				}
			})
		}
	}
}

// failsEverywhere has every node say that it can have neither the newest version nor
// another one.
func (f *fleet) failsEverywhere() {
	f.t.Helper()
	for _, name := range f.nodes {
		f.nodeSays(name, f.says(f.app, v1alpha1.NodeFailed))
	}
	f.settles()
}

// TestAVersionForNoNodeWaitsWhereAnythingMayRun has nodes say nothing of what they
// may run.
func TestAVersionForNoNodeWaitsWhereAnythingMayRun(t *testing.T) {
	for sentence, c := range map[string]func(*fleet, string){
		"they have yet to answer": func(f *fleet, name string) { f.nodeSays(name) },
		"what they said was lost": func(f *fleet, name string) {
			if err := f.api.Delete(f.t.Context(), &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				f.t.Fatal(err)
			}
		},
		"they speak of an older version": func(f *fleet, name string) {
			said := f.says(f.app, v1alpha1.NodeFailed)
			said.Serial--
			f.nodeSays(name, said)
		},
	} {
		for how, bring := range comesBack {
			t.Run(sentence+": "+how, func(t *testing.T) {
				f := newFleet(t)
				f.app = defined("second", f.versions[0])
				choosesNobody(&f.app.Spec)
				f.create(f.app)
				f.settles()
				f.edit(func(s *v1alpha1.BpfApplicationSpec) { s.NodeSelector, s.Bytecode.Image = nil, f.versions[1] })
				f.failsEverywhere()
				c(f, f.nodes[2])
				before := f.settles()
				bring(f)
				if p := f.settles(); p.Serial != before.Serial {
					t.Errorf("%s, before %s; %+v", f.say(p), f.say(before), f.state())
				}
			})
		}
	}
}
