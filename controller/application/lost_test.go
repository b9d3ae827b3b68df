package application

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

func TestAFullReportTakesTheStepsFromNoFirstVersion(t *testing.T) {
	f := newFleet(t)
	f.shortens(f.nodes[0], nil)
	f.app = defined("new", f.versions[0])
	f.app.Spec.Rollout = nil
	f.create(f.app)
	if p := f.settles(); p.Rollout == nil {
		t.Errorf("%s", f.say(p))
	}
}

// TestALostIntentStaysKnown has the status written while what was lost cannot be
// sealed again.
func TestALostIntentStaysKnown(t *testing.T) {
	f := newFleet(t)
	for _, name := range f.nodes {
		f.shortens(name, nil)
	}
	f.lose()
	f.Down.Store(true)
	if p := f.version(1); p != nil {
		t.Fatalf("the registry is away, and sealed is %s", f.say(p))
	}
	f.Down.Store(false)
	if p := f.settles(); f.say(p) != "v2 on 5" {
		t.Errorf("nodes would lose what they run: %s", f.say(p))
	}
}

func TestWhatIsHeldSinceItsIntentWasLostSaysWhatNoRevocationReaches(t *testing.T) {
	for sentence, hold := range map[string]func(*fleet){
		"it failed": func(f *fleet) {
			f.version(1)
			f.answers(v1alpha1.NodeFailed)
			f.lose()
			f.settles()
		},
		"it chooses no node": func(f *fleet) {
			f.lose()
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { choosesNobody(s); s.Bytecode.Image = f.versions[1] })
		},
		"it chooses no node, and a newer intent was lost": func(f *fleet) {
			f.overtake()
			f.edit(func(s *v1alpha1.BpfApplicationSpec) { choosesNobody(s); s.Bytecode.Image = f.versions[1] })
		},
		"an undo cannot be done, and a newer intent was lost": func(f *fleet) {
			f.undo()
			f.overtake()
			f.clock = f.clock.Add(time.Minute)
			f.settles()
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			hold(f)
			before, signer := f.intent(f.app), "team-a"
			if before != nil {
				// It signed what came after that.
				signer = "team-c"
			}
			p := f.revoke(signer)
			if (p == nil) != (before == nil) || p != nil && p.Serial != before.Serial || !strings.Contains(f.state().Message, "what runs goes on, whatever is revoked") {
				t.Errorf("%+v; %+v", p, f.state())
			}
		})
	}
}

func TestWhatIsSuspendedAndWhoseIntentWasLostSaysWhatNoRevocationReaches(t *testing.T) {
	for sentence, forget := range map[string]func(*fleet){
		"its status and the nodes know of it": func(*fleet) {},
		"its status alone does": func(f *fleet) {
			for _, name := range f.nodes {
				f.nodeSays(name)
			}
		},
		"the nodes alone do": func(f *fleet) {
			f.app.Status.Serial = 0
			if err := f.api.Status().Update(t.Context(), f.app); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.answers(v1alpha1.NodeLoaded)
			f.lose()
			forget(f)
			p := f.edit(suspend)
			const want = "it is suspended; of an intent that was lost, what runs goes on, whatever is revoked"
			if ready := condition(f.app, v1alpha1.ConditionReady); p != nil || ready.Reason != ReasonSuspended || ready.Message != want {
				t.Errorf("%+v; Ready is %+v", p, ready)
			}
		})
	}
}

// restore brings back an intent that was lost.
func (f *fleet) restore(o v1alpha1.BpfIntent) *intent.Payload {
	f.t.Helper()
	o.ResourceVersion = ""
	f.create(&o)
	return f.settles()
}

// stored is the intent as the API server has it.
func (f *fleet) stored() (o v1alpha1.BpfIntent) {
	f.t.Helper()
	if err := f.api.Get(f.t.Context(), client.ObjectKey{Name: string(f.app.UID)}, &o); err != nil {
		f.t.Fatal(err)
	}
	return o
}

// TestWhatWasStoppedIsNotUndoneForAnOldUndo has an undo of another version stand on an
// application whose newest version failed, and whose intent is lost and comes back.
func TestWhatWasStoppedIsNotUndoneForAnOldUndo(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.version(1)
	f.undo()
	f.version(2)
	f.answers(v1alpha1.NodeFailed)
	was := f.stored()
	f.lose()
	if p := f.settles(); p != nil || f.state().State != v1alpha1.RolloutStopped {
		t.Fatalf("lost: %+v; %+v", p, f.state())
	}
	for sentence, do := range stays {
		if do(f); f.state().State != v1alpha1.RolloutStopped {
			t.Fatalf("%s: %+v", sentence, f.state())
		}
	}
	if p := f.restore(was); f.say(p) != "v3 on 1, before v1" {
		t.Errorf("nobody undid it: %s; %+v", f.say(p), f.state())
	}
}

// TestWhatWasUndoneStaysUndoneWhereAnOlderIntentComesBack has the undo itself lost.
func TestWhatWasUndoneStaysUndoneWhereAnOlderIntentComesBack(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.version(1)
	was := f.stored()
	f.undo()
	f.lose()
	f.settles()
	for _, do := range stays {
		do(f)
	}
	if p := f.restore(was); f.say(p) != "v1 on 5, withdrawn v2" || f.state().State != v1alpha1.RolloutRolledBack {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
}

// TestAResumeIsOfTheIntentThatWasLost has one lost twice whose version fails, while
// nodes run nothing of it.
func TestAResumeIsOfTheIntentThatWasLost(t *testing.T) {
	f := newFleet(t)
	f.app = defined("second", f.versions[0])
	f.app.Spec.Rollout = nil
	f.create(f.app)
	f.settles()
	for _, when := range []string{"once", "twice"} {
		f.answers(v1alpha1.NodeFailed)
		for _, name := range f.nodes {
			f.nodeSays(name)
		}
		f.lose()
		if p := f.settles(); p != nil || f.state().State != v1alpha1.RolloutStopped {
			t.Fatalf("lost %s: %+v; %+v", when, p, f.state())
		}
		if p := f.resume(); p == nil {
			t.Fatalf("lost %s, and resumed: %+v", when, f.state())
		}
	}
}
