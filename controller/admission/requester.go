package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/application"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

// Bounds on who is recorded; the chart's MutatingAdmissionPolicy has the same.
const (
	maxUsernameRunes = 1024
	maxGroupRunes    = 256
	maxGroups        = 64
)

// steering are the annotations that change what runs as a spec does.
func steering() []string {
	return []string{gate.AnnotationRequestedAt, v1alpha1.AnnotationResume, v1alpha1.AnnotationUndo}
}

// differ tells whether one of some annotations changed.
func differ(before, now metav1.Object, annotations ...string) bool {
	was, is := before.GetAnnotations(), now.GetAnnotations()
	return slices.ContainsFunc(annotations, func(a string) bool { return was[a] != is[a] })
}

// Recorder records on applications who last changed their spec, or how what runs
// is steered, over whatever the user wrote there. It is for clusters without MutatingAdmissionPolicy,
// which does the same without a request.
type Recorder struct{}

// Handle implements admission.Handler.
func (Recorder) Handle(_ context.Context, req webhook.AdmissionRequest) webhook.AdmissionResponse {
	var object, before unstructured.Unstructured
	err := json.Unmarshal(req.Object.Raw, &object.Object)
	if err == nil && req.Operation == admissionv1.Update {
		err = json.Unmarshal(req.OldObject.Raw, &before.Object)
	}
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("read %s: %w", name(req), err))
	}
	// Where these are the same, the old record is put back: a tool that applies an
	// object again, whoever runs it, is to change nothing.
	wanted := before.GetAnnotations()[application.AnnotationRequester]
	if req.Operation != admissionv1.Update || differ(&before, &object, steering()...) || !reflect.DeepEqual(object.Object["spec"], before.Object["spec"]) {
		if wanted, err = record(req.UserInfo); err != nil {
			return webhook.Errored(http.StatusInternalServerError, err)
		}
	}
	annotations := object.GetAnnotations()
	switch {
	case annotations[application.AnnotationRequester] == wanted:
	case wanted == "":
		delete(annotations, application.AnnotationRequester)
	case annotations == nil:
		annotations = map[string]string{application.AnnotationRequester: wanted}
	default:
		annotations[application.AnnotationRequester] = wanted
	}
	object.SetAnnotations(annotations)
	changed, err := object.MarshalJSON()
	if err != nil {
		return webhook.Errored(http.StatusInternalServerError, fmt.Errorf("write %s: %w", name(req), err))
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, changed)
}

// record is a user as application.Requester reads it. Groups that do not fit
// are left out: a policy that allows by group then allows less.
func record(user authenticationv1.UserInfo) (string, error) {
	who := policies.Requester{Groups: []string{}}
	if fits(user.Username, maxUsernameRunes) {
		who.Username = user.Username
	}
	for _, g := range user.Groups {
		if fits(g, maxGroupRunes) && len(who.Groups) < maxGroups {
			who.Groups = append(who.Groups, g)
		}
	}
	text, err := json.Marshal(who)
	return string(text), err
}

// fits tells whether a name is short enough and without control characters.
func fits(s string, runes int) bool {
	return len([]rune(s)) <= runes && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x80 && unicode.IsControl(r) })
}
