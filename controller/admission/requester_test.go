package admission

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestTheRecorderTouchesNothingButItsAnnotation has numbers in a spec that no float
// holds.
func TestTheRecorderTouchesNothingButItsAnnotation(t *testing.T) {
	const (
		ann, ben = `{"username":"ann","groups":[]}`, `{"username":"ben","groups":[]}`
		seed     = "9007199254740993"
		whole    = "/metadata/annotations"
		key      = whole + "/skep.dev~1requester"
	)
	object := func(annotations, seed string) runtime.RawExtension {
		return runtime.RawExtension{Raw: fmt.Appendf(nil, `{"metadata":{"name":"a"%s},"spec":{"variables":{"seed":%s}}}`, annotations, seed)}
	}
	with := func(record string) string {
		return fmt.Sprintf(`,"annotations":{"mine":"yes",%q:%q}`, v1alpha1.AnnotationRequester, record)
	}
	for sentence, c := range map[string]struct {
		before, now runtime.RawExtension
		want        []webhook.JSONPatchOp
	}{
		"a new one without annotations": {runtime.RawExtension{}, object("", seed),
			[]webhook.JSONPatchOp{{Operation: "add", Path: whole, Value: map[string]string{v1alpha1.AnnotationRequester: ben}}}},
		"a new one with a forgery": {runtime.RawExtension{}, object(with(ann), seed), []webhook.JSONPatchOp{{Operation: "add", Path: key, Value: ben}}},
		"another number": {
			object(with(ann), "9007199254740992"), object(with(ann), seed), []webhook.JSONPatchOp{{Operation: "add", Path: key, Value: ben}},
		},
		"the same number": {object(with(ann), seed), object(with(ann), seed), nil},
		"the same, and the record taken away": {object(with(ann), seed), object(`,"annotations":{"mine":"yes"}`, seed),
			[]webhook.JSONPatchOp{{Operation: "add", Path: key, Value: ann}}},
		"a record where there was none": {object("", seed), object(with(ben), seed), []webhook.JSONPatchOp{{Operation: "remove", Path: key}}},
	} {
		t.Run(sentence, func(t *testing.T) {
			operation := admissionv1.Update
			if c.before.Raw == nil {
				operation = admissionv1.Create
			}
			answer := Recorder{}.Handle(t.Context(), webhook.AdmissionRequest{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: operation, UserInfo: authenticationv1.UserInfo{Username: "ben"}, Object: c.now, OldObject: c.before,
			}})
			if diff := cmp.Diff(c.want, answer.Patches); !answer.Allowed || diff != "" {
				t.Errorf("allowed %v, patches (-want +got):\n%s", answer.Allowed, diff)
			}
		})
	}
}
