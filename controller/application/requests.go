package application

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
)

// requestSpacing is how often the annotation reconcile.fluxcd.io/requestedAt of one
// application has a registry asked again. Whoever may annotate may do so without end.
const requestSpacing = 10 * time.Second

// requests remember which reconcile an application was last asked for, and when.
type requests struct {
	mu   sync.Mutex
	byID map[v1alpha1.Identity]requested
}

// requested is a value of the annotation, and when this process first saw it in the place of
// another; the zero time of the first that it saw, unless the status says that it was not handled.
type requested struct {
	uid   types.UID
	value string
	at    time.Time
}

// answer returns the application with the request that is answered now, and for how long a
// newer one waits; zero if none does.
func (r *requests) answer(app application, now time.Time) (application, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[v1alpha1.Identity]requested{}
	}
	value, id := app.GetAnnotations()[gate.AnnotationRequestedAt], app.Identity()
	known, ok := r.byID[id]
	switch since := now.Sub(known.at); {
	case !ok || known.uid != app.GetUID():
		r.byID[id] = requested{uid: app.GetUID(), value: value}
		if isUnhandled(app, value) {
			r.byID[id] = requested{app.GetUID(), value, now}
		}
	case known.value == value:
	case !known.at.IsZero() && since >= 0 && since < requestSpacing:
		return withRequest(app, known.value), requestSpacing - since
	default:
		r.byID[id] = requested{app.GetUID(), value, now}
	}
	return app, 0
}

// isUnhandled reports whether an application that has a status has a request which that does not name: one made while no process
// led, or a moment before another one did.
func isUnhandled(app application, value string) bool {
	report := app.Report()
	return value != "" && report.ObservedGeneration > 0 && report.LastHandledReconcileAt != value
}

// withRequest is an application as if it had another value of the annotation.
func withRequest(app application, value string) application {
	app = app.DeepCopyObject().(application)
	annotations := maps.Clone(app.GetAnnotations())
	if delete(annotations, gate.AnnotationRequestedAt); value != "" {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[gate.AnnotationRequestedAt] = value
	}
	app.SetAnnotations(annotations)
	return app
}

// at is when the request that is answered was made; the zero time if none was since this
// process knows the application, and the status names the one it had then.
func (r *requests) at(id v1alpha1.Identity) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id].at
}

func (r *requests) forget(id v1alpha1.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}

func (r *requests) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byID)
}
