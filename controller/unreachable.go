package controller

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// The bounds of what is reported of registries that could not be reached: how many causes are
// remembered, and how often one is reported. People who name images choose how many registries there are, so new
// causes have events by a rate: eventBurst, and then one each eventEvery.
const (
	maxUnreachable   = 1024
	unreachableEvery = time.Minute
	eventBurst       = 32
	eventEvery       = time.Minute
	eventFor         = time.Hour
)

// maxCause bounds the cause in an event, in bytes.
const maxCause = 512

// unreachable reports why registries could not be reached, in the log and as events in Skep's own namespace. Conditions of
// a namespace's applications do not name the cause: their author would learn what is where in the network.
type unreachable struct {
	logged, announced *cache.LRUExpireCache
	announcements     *rate.Limiter
	events            events.EventRecorder
	// controller is what the events are about.
	controller *corev1.ObjectReference
}

// newUnreachable reports to events of the controller in a namespace.
func newUnreachable(to events.EventRecorder, namespace string) unreachable {
	return unreachable{
		logged: cache.NewLRUExpireCache(maxUnreachable), announced: cache.NewLRUExpireCache(maxUnreachable),
		announcements: rate.NewLimiter(rate.Every(eventEvery), eventBurst), events: to,
		controller: &corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: leaseName},
	}
}

// report is registry.Options.Unreachable.
func (u unreachable) report(registry string, cause error) {
	key := [2]string{registry, cause.Error()}
	if _, known := u.logged.Get(key); known {
		return
	}
	u.logged.Add(key, nil, unreachableEvery)
	ctrl.Log.WithName("registries").Info("cannot reach registry", "registry", registry, "cause", cause.Error())
	if _, known := u.announced.Get(key); !known && !u.announcements.Allow() {
		return
	}
	u.announced.Add(key, nil, eventFor)
	said := text.CutTo(cause.Error(), maxCause, "…")
	// The recorder counts events that differ in their notes alone as one.
	about := &corev1.ObjectReference{Kind: "Registry", Name: registry, FieldPath: said}
	u.events.Eventf(u.controller, about, corev1.EventTypeWarning, v1alpha1.ReasonRegistryUnreachable, "Pull", "%s: %s", registry, said)
}
