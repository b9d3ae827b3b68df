package application

import (
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// keptThough has signers change, after which what runs is denied: it is frozen, and runs on
// everywhere as it was sealed.
func keptThough(t *testing.T, change func(*fleet, *v1alpha1.BpfSigner)) {
	t.Helper()
	f := newFleet(t)
	before := f.intent(f.app)
	change(f, &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	f.refresh()
	p := f.settles()
	if !conditions.IsFalse(f.app, v1alpha1.ConditionAllowed) {
		t.Error("it is not denied")
	}
	if f.say(p) != "v1 on 5" || p.Serial != before.Serial {
		t.Errorf("it runs on as %s", f.say(p))
	}
}

func TestASignerThatIsDeletedUnloadsNothing(t *testing.T) {
	keptThough(t, func(f *fleet, signer *v1alpha1.BpfSigner) {
		if err := f.api.Delete(t.Context(), signer); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNotAfterKeepsWhatRuns(t *testing.T) {
	keptThough(t, func(f *fleet, signer *v1alpha1.BpfSigner) {
		f.change(signer, func() { signer.Spec.NotAfter = &metav1.Time{Time: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)} })
	})
}

// TestAResumeGoesPastANodeThatLies has one node say without end that a version failed, or
// is on its way, while all others run it.
func TestAResumeGoesPastANodeThatLies(t *testing.T) {
	for _, lie := range []v1alpha1.NodeState{v1alpha1.NodeFailed, v1alpha1.NodePending} {
		t.Run(string(lie), func(t *testing.T) {
			f := newFleet(t)
			liar := ""
			p := f.version(1)
			for _, name := range f.nodes {
				if liar == "" && p.Reaches(name) {
					liar = name
				}
			}
			answer := func() {
				for _, name := range f.nodes {
					if name != liar && f.intent(f.app).Reaches(name) {
						f.answer(name, v1alpha1.NodeLoaded)
					}
				}
				f.answer(liar, lie)
				p = f.settles()
			}
			for range 5 {
				answer()
			}
			if f.reaches(p) == 5 {
				t.Fatal("the node stops no rollout by its lie")
			}
			p = f.resume()
			for range 5 {
				answer()
			}
			if p.Image != f.versions[1] || f.reaches(p) != 5 {
				t.Errorf("after a resume: %s, %+v", f.say(p), f.state())
			}
		})
	}
}

func TestALabelIsNoWordOfTheRequester(t *testing.T) {
	const record = `{"username":"ann","groups":["admins"]}`
	for sentence, c := range map[string]struct {
		labels, annotations map[string]string
		want                policies.Requester
	}{
		"the annotation of the record": {
			nil, map[string]string{v1alpha1.AnnotationRequester: record}, policies.Requester{Username: "ann", Groups: []string{"admins"}},
		},
		"a label of its name": {
			map[string]string{v1alpha1.AnnotationRequester: "ann", "requester": "ann", "username": "ann"}, nil, policies.Requester{},
		},
		"annotations that are called alike": {
			nil, map[string]string{"requester": record, "skep.dev/Requester": record, "skep.dev/requested-by": record}, policies.Requester{},
		},
		"a label beside a record of somebody else": {
			map[string]string{v1alpha1.AnnotationRequester: "ben"}, map[string]string{v1alpha1.AnnotationRequester: record},
			policies.Requester{Username: "ann", Groups: []string{"admins"}},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", Labels: c.labels, Annotations: c.annotations}}
			if diff := cmp.Diff(c.want, Requester(app)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
