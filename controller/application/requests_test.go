package application

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// TestRequestsAreAnsweredAtOnceAndNowAndThen annotates an application each second: the
// first request is answered at once, and no more than one in ten seconds.
func TestRequestsAreAnsweredAtOnceAndNowAndThen(t *testing.T) {
	var r requests
	app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", UID: "u", Annotations: map[string]string{"a": "b"}}}
	now := time.Unix(1000, 0)
	answered := func() string {
		t.Helper()
		got, wait := r.answer(app, now)
		if got.GetAnnotations()["a"] != "b" || (wait > 0) != (got.GetAnnotations()[gate.AnnotationRequestedAt] != app.Annotations[gate.AnnotationRequestedAt]) {
			t.Errorf("annotations %v, and a wait of %s", got.GetAnnotations(), wait)
		}
		return got.GetAnnotations()[gate.AnnotationRequestedAt]
	}
	if answered() != "" || !r.at(app.Identity()).IsZero() {
		t.Error("an application that nobody asked about was asked about")
	}
	for i := range 30 {
		now = now.Add(time.Second)
		app.Annotations[gate.AnnotationRequestedAt] = fmt.Sprint(i)
		if got, want := answered(), fmt.Sprint(i/10*10); got != want {
			t.Errorf("after %d s request %q is answered, want %q", i, got, want)
		}
	}
	if at := r.at(app.Identity()); !at.Equal(time.Unix(1021, 0)) {
		t.Errorf("it was asked for at %s", at)
	}
	// Another one of that name is new, as all are after a restart.
	app.UID = "v"
	if answered() != "29" || !r.at(app.Identity()).IsZero() {
		t.Error("what another application was asked for counts")
	}
}

// TestARequestThatNobodyHandledIsAnsweredAfterARestart: the process that led saw it, or none did.
func TestARequestThatNobodyHandledIsAnsweredAfterARestart(t *testing.T) {
	now := time.Unix(1000, 0)
	for sentence, c := range map[string]struct {
		asked, handled string
		generation     int64
		want           time.Time
	}{
		"it was handled":                    {"2", "2", 1, time.Time{}},
		"it was not":                        {"2", "1", 1, now},
		"it is the first":                   {"2", "", 1, now},
		"it was taken back":                 {"", "1", 1, time.Time{}},
		"the application was not looked at": {"2", "", 0, time.Time{}},
		"nothing was ever asked for":        {"", "", 1, time.Time{}},
	} {
		var r requests
		app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", UID: "u",
			Annotations: map[string]string{gate.AnnotationRequestedAt: c.asked}}}
		app.Status.LastHandledReconcileAt, app.Status.ObservedGeneration = c.handled, c.generation
		if _, wait := r.answer(app, now); wait != 0 || !r.at(app.Identity()).Equal(c.want) {
			t.Errorf("%s: it waits %s, and counts as asked for at %s", sentence, wait, r.at(app.Identity()))
		}
		if c.want.IsZero() {
			continue
		}
		app.Annotations[gate.AnnotationRequestedAt] = "3"
		if _, wait := r.answer(app, now.Add(time.Second)); wait != requestSpacing-time.Second {
			t.Errorf("%s: the next one waits %s", sentence, wait)
		}
	}
}
