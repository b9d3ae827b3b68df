package application

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
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
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.version(1)
	f.answers(v1alpha1.NodeFailed)
	f.lose()
	f.settles()
	if p := f.revoke("team-a"); p != nil || !strings.Contains(f.state().Message, "what runs goes on, whatever is revoked") {
		t.Errorf("%+v; %+v", p, f.state())
	}
}
