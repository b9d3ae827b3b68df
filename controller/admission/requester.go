package admission

import (
	"bytes"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

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

// differ reports whether one of some annotations changed.
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
	object, err := exact(req.Object.Raw)
	var before unstructured.Unstructured
	if err == nil && req.Operation == admissionv1.Update {
		before, err = exact(req.OldObject.Raw)
	}
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("read %s: %w", name(req), err))
	}
	// Where these are the same, the old record is put back: a tool that applies an
	// object again, whoever runs it, is to change nothing.
	wanted := before.GetAnnotations()[v1alpha1.AnnotationRequester]
	if req.Operation != admissionv1.Update || differ(&before, &object, steering()...) || !reflect.DeepEqual(object.Object["spec"], before.Object["spec"]) {
		if wanted, err = record(req.UserInfo); err != nil {
			return webhook.Errored(http.StatusInternalServerError, err)
		}
	}
	return webhook.Patched("", patches(object.GetAnnotations(), wanted)...)
}

// exact reads an object with its numbers as they were written: as floats, those of
// more than 53 bits would not differ from their neighbours.
func exact(raw []byte) (object unstructured.Unstructured, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return object, decoder.Decode(&object.Object)
}

// patches has annotations hold the record that is wanted, or none where it is
// empty, and leaves all else as it was written.
func patches(annotations map[string]string, wanted string) []webhook.JSONPatchOp {
	const whole = "/metadata/annotations"
	key := whole + "/" + strings.ReplaceAll(v1alpha1.AnnotationRequester, "/", "~1")
	switch is := annotations[v1alpha1.AnnotationRequester]; {
	case is == wanted:
		return nil
	case wanted == "":
		return []webhook.JSONPatchOp{{Operation: "remove", Path: key}}
	case annotations == nil:
		return []webhook.JSONPatchOp{{Operation: "add", Path: whole, Value: map[string]string{v1alpha1.AnnotationRequester: wanted}}}
	}
	return []webhook.JSONPatchOp{{Operation: "add", Path: key, Value: wanted}}
}

// unrecorded is what whoever writes is told while nobody records them.
const unrecorded = "admission/requester: the annotation " + v1alpha1.AnnotationRequester +
	" does not say who asks, which what installs Skep has recorded over whatever stands there " +
	"(have an admin install the MutatingAdmissionPolicy skep-requester of Skep's chart, or the webhook requester.skep.dev)"

// recorded reports whether an application says truly who asked, so that no policy
// believes what a user wrote there while the recorder is not in place. Where
// nothing new is asked the record before may stay.
func recorded(before, now client.Object, asks bool, user authenticationv1.UserInfo) (bool, error) {
	app, ok := now.(v1alpha1.Application)
	if !ok {
		return true, nil
	}
	text, err := record(user)
	if err != nil {
		return false, err
	}
	// The recorders write the same in other words.
	truth := &v1alpha1.BpfApplication{}
	truth.SetAnnotations(map[string]string{v1alpha1.AnnotationRequester: text})
	if reflect.DeepEqual(application.Requester(app), application.Requester(truth)) {
		return true, nil
	}
	return !asks && !differ(before, now, v1alpha1.AnnotationRequester), nil
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

// fits reports whether a name is short enough and without control characters.
func fits(s string, runes int) bool {
	return len([]rune(s)) <= runes && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x80 && unicode.IsControl(r) })
}
