package application

import (
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// undoWith undoes the definition and changes it, in one write.
func (f *fleet) undoWith(change func(*v1alpha1.BpfApplicationSpec)) *intent.Payload {
	f.t.Helper()
	f.change(f.app, func() {
		metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationUndo, strconv.FormatInt(f.app.Generation, 10))
		change(&f.app.Spec)
		f.app.Generation++
	})
	return f.settles()
}

func suspend(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true }
func goesOn(s *v1alpha1.BpfApplicationSpec)  { s.Suspend = false }
func bySteps(s *v1alpha1.BpfApplicationSpec) {
	s.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("50%")}}
}

func TestAnUndoMayComeWithAChangeThatAsksNothingElseOfNodes(t *testing.T) {
	for sentence, c := range map[string]struct {
		before, with func(*v1alpha1.BpfApplicationSpec)
		state        v1alpha1.RolloutState
		says, want   string
	}{
		"it is suspended":      {goesOn, suspend, v1alpha1.RolloutStopped, "comes back once it is not", "v2 on 1, before v1"},
		"it is no longer":      {suspend, goesOn, v1alpha1.RolloutRolledBack, "was brought back", "v1 on 5, withdrawn v2"},
		"its steps are others": {goesOn, bySteps, v1alpha1.RolloutRolledBack, "was brought back", "v1 on 5, withdrawn v2"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFleet(t)
			f.version(1)
			f.edit(c.before)
			if p := f.undoWith(c.with); f.say(p) != c.want || f.state().State != c.state || !strings.Contains(f.state().Message, c.says) {
				t.Fatalf("%s, want %s; %+v", f.say(p), c.want, f.state())
			}
			if p := f.edit(goesOn); f.say(p) != "v1 on 5, withdrawn v2" {
				t.Errorf("in the end: %s; %+v", f.say(p), f.state())
			}
		})
	}
}

func TestAnUndoThatComesWithAnotherVersionIsNotOfThatOne(t *testing.T) {
	f := newFleet(t)
	f.version(1)
	p := f.undoWith(func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = f.versions[2] })
	if f.say(p) != "v3 on 1, before v1, withdrawn v2" {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
}

func TestAnUndoOfALostIntentMayComeWithSuch(t *testing.T) {
	f := newFleet(t)
	f.answers(v1alpha1.NodeLoaded)
	f.version(1)
	f.lose()
	if p := f.undoWith(bySteps); p != nil || f.state().State != v1alpha1.RolloutStopped {
		t.Errorf("%+v; %+v", p, f.state())
	}
}

// TestAnUndoIsNotOfWhatIsAskedForAgain has another version come, be undone and go
// before the controller looks.
func TestAnUndoIsNotOfWhatIsAskedForAgain(t *testing.T) {
	f := newFleet(t)
	f.version(1)
	for _, n := range []int{2, 1} {
		f.change(f.app, func() {
			f.app.Spec.Bytecode.Image = f.versions[n]
			f.app.Generation++
			if n == 2 {
				metav1.SetMetaDataAnnotation(&f.app.ObjectMeta, v1alpha1.AnnotationUndo, strconv.FormatInt(f.app.Generation, 10))
			}
		})
	}
	if p := f.settles(); f.say(p) != "v2 on 1, before v1" {
		t.Errorf("%s; %+v", f.say(p), f.state())
	}
}
