package application

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// namespaceKind is what namespaces are read as: their metadata is enough.
var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

// Requester is who last changed the application; empty where nobody recorded
// it.
func Requester(app v1alpha1.Application) policies.Requester {
	var who policies.Requester
	if json.Unmarshal([]byte(app.GetAnnotations()[v1alpha1.AnnotationRequester]), &who) != nil {
		return policies.Requester{}
	}
	return who
}

// tag is what an image's tag stood for when a generation was first evaluated.
type tag struct {
	generation int64
	digest     string
	// moved is what it stands for now, where that is something else; looked is when
	// that was asked last.
	moved  string
	looked time.Time
}

// tags remembers them while no intent does.
type tags struct {
	mu   sync.Mutex
	byID map[v1alpha1.Identity]tag
	// looking counts those that are asked about.
	looking atomic.Int32
}

// digest is what is known for a generation; empty where nothing is.
func (t *tags) digest(id v1alpha1.Identity, generation int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byID[id]; known.generation == generation {
		return known.digest
	}
	return ""
}

func (t *tags) keep(app v1alpha1.Application, digest string, now time.Time) {
	generation, err := gate.Generation(app)
	if err != nil || digest == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[v1alpha1.Identity]tag{}
	}
	if t.byID[app.Identity()].generation != generation {
		t.byID[app.Identity()] = tag{generation: generation, digest: digest, looked: now}
	}
}

// due reports whether it is time to ask what the tag of an application stands for
// now, and takes it that this is done.
func (t *tags) due(id v1alpha1.Identity, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.byID[id]
	if !ok || now.Sub(known.looked) < lookUpEvery {
		return false
	}
	known.looked = now
	t.byID[id] = known
	return true
}

// found notes what a tag stands for now.
func (t *tags) found(id v1alpha1.Identity, digest string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byID[id]
	known.moved = ""
	if digest != known.digest {
		known.moved = digest
	}
	t.byID[id] = known
}

// moved is what a tag stands for now, where that is not what is active.
func (t *tags) moved(id v1alpha1.Identity) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id].moved
}

// lookUpEvery is how often it is asked what a tag stands for, lookUpTime how long
// that may take, and lookUpsAtOnce how many are asked about: a registry that
// hangs holds up no more workers than that.
const (
	lookUpEvery   = 5 * time.Minute
	lookUpTime    = 3 * time.Second
	lookUpsAtOnce = 2
)

// lookUp asks now and then what the tag of an application stands for. One that
// moved is reported and not followed; a registry that does not answer says
// nothing.
func (t *tags) lookUp(ctx context.Context, app application, s lifecycle.Observation, now time.Time) {
	image := s.Verdict.Image()
	if image.Tag == "" || s.Request.Reader == nil || !s.Verdict.Allowed() || !s.Verdict.Stale().IsZero() {
		return
	}
	defer t.looking.Add(-1)
	if t.looking.Add(1) > lookUpsAtOnce || !t.due(app.Identity(), now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	if is, err := s.Request.Reader.Resolve(ctx, image.Reference); err == nil {
		t.found(app.Identity(), is.Digest)
	}
}

func (t *tags) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byID)
}

func (t *tags) forget(id v1alpha1.Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}
