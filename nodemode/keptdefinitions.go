package nodemode

import (
	"encoding/json"
	"errors"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// errNotRead stands for the verdict on a definition of which only the metadata are known.
var errNotRead = errors.New("the source has not been read since the start")

// maxMetadata bounds what is kept of one definition in bytes, so that one leaves room for the others.
const maxMetadata = 16 << 10

// keptDefinitions is what policies see of what runs beside what is sealed: what its definition said when the source was read
// last. A start has a revocation act by it before it has read the source.
type keptDefinitions struct {
	file kept
	log  *slog.Logger
	last definedThen
}

// definedThen is what the source said. Of an application that is not in it, nothing is known.
type definedThen struct {
	// Author is source.Tree.Author.
	Author string `json:"author"`
	// Applications are those that run, by UID; nil is one of which no definition could be read.
	Applications map[string]*metadata `json:"applications"`
}

// metadata is what asSealed takes from a definition.
type metadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// open reads what the last run kept.
func (k *keptDefinitions) open(o Options, sealer *intent.Sealer) {
	k.file, k.log = keptIn(o, definitionsFile, definitionsType, sealer), o.Log
	body, err := k.file.read()
	if err == nil && body != nil {
		err = json.Unmarshal(body, &k.last)
	}
	if err != nil {
		k.last = definedThen{}
		k.log.Error("what the last run read of definitions is not known; a revocation waits for the source at this start", "error", err)
	}
}

// observe is a running version as the last run would observe it; false where nothing is known of it.
func (k *keptDefinitions) observe(p *intent.Payload) (observation, bool) {
	said, ok := k.last.Applications[p.UID]
	s := observation{id: p.Application, Observation: lifecycle.Observation{Live: p, Hidden: true, Err: errNotRead}}
	if said == nil {
		return s, ok
	}
	meta := metav1.ObjectMeta{Name: p.Application.Name, Namespace: p.Application.Namespace, Labels: said.Labels, Annotations: said.Annotations}
	s.Request = gate.Request{Application: &v1alpha1.ClusterBpfApplication{ObjectMeta: meta}, Requester: policies.Requester{Username: k.last.Author}}
	if p.Application.Kind == v1alpha1.KindBpfApplication {
		s.Request.Application = &v1alpha1.BpfApplication{ObjectMeta: meta}
	}
	return s, true
}

// keep notes what the source says now of what runs.
func (k *keptDefinitions) keep(author string, outcomes []outcome) {
	k.last = definedThen{Author: author, Applications: map[string]*metadata{}}
	for _, o := range outcomes {
		if o.action == lifecycle.Unload || o.action == lifecycle.Keep && !o.Runs() {
			continue
		}
		var said *metadata
		if o.def.app != nil {
			said = &metadata{Labels: o.def.app.GetLabels(), Annotations: o.def.app.GetAnnotations()}
			if body, err := json.Marshal(said); err != nil || len(body) > maxMetadata {
				continue
			}
		}
		k.last.Applications[uidOf(o.id)] = said
	}
	body, err := json.Marshal(k.last)
	if err == nil {
		err = k.file.write(body)
	}
	if err != nil {
		k.log.Error("at the next start, a revocation waits for the source", "error", err)
	}
}
