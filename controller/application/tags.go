package application

import (
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

// namespaceKind is what namespaces are read as: their metadata is enough.
var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

// AnnotationRequester says who last changed an application's spec, as JSON. The
// API server's admission writes it over whatever a user put there.
const AnnotationRequester = v1alpha1.Group + "/requester"

// Requester is who last changed the application; empty where nobody recorded
// it.
func Requester(app v1alpha1.Application) policies.Requester {
	var who policies.Requester
	if json.Unmarshal([]byte(app.GetAnnotations()[AnnotationRequester]), &who) != nil {
		return policies.Requester{}
	}
	return who
}

// tag is what an image's tag stood for when a generation was first judged.
type tag struct {
	generation int64
	digest     string
}

// tags remembers them while no intent does.
type tags struct {
	mu   sync.Mutex
	byID map[v1alpha1.Identity]tag
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

func (t *tags) keep(app v1alpha1.Application, digest string) {
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
		t.byID[app.Identity()] = tag{generation: generation, digest: digest}
	}
}

func (t *tags) forget(id v1alpha1.Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}
