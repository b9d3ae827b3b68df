package nodemode

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// errNotRead stands for the verdict on a definition of which only the metadata are known.
var errNotRead = errors.New("the source has not been read since the start")

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
	// LeftOut says that there was no room for them.
	LeftOut bool `json:"leftOut,omitempty"`
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
	if said == nil || said.LeftOut {
		return s, ok
	}
	meta := metav1.ObjectMeta{Name: p.Application.Name, Namespace: p.Application.Namespace, Labels: said.Labels, Annotations: said.Annotations}
	s.Request = gate.Request{Application: &v1alpha1.ClusterBpfApplication{ObjectMeta: meta}, Requester: policies.Requester{Username: k.last.Author}}
	if p.Application.Kind == v1alpha1.KindBpfApplication {
		s.Request.Application = &v1alpha1.BpfApplication{ObjectMeta: meta}
	}
	return s, true
}

// isLeftOut reports whether there was no room for what a definition said.
func (k *keptDefinitions) isLeftOut(p *intent.Payload) bool {
	said := k.last.Applications[p.UID]
	return said != nil && said.LeftOut
}

// keep notes what the source says now of what runs.
func (k *keptDefinitions) keep(author string, outcomes []outcome) {
	k.last = definedThen{Author: author, Applications: map[string]*metadata{}}
	for _, o := range outcomes {
		if o.action == lifecycle.Unload && o.err == nil || o.action == lifecycle.Keep && !o.Runs() {
			continue
		}
		var said *metadata
		if o.def.app != nil {
			said = &metadata{Labels: o.def.app.GetLabels(), Annotations: o.def.app.GetAnnotations()}
		}
		k.last.Applications[uidOf(o.id)] = said
	}
	body, err := k.last.fit(intent.MaxPayloadBytes)
	if err == nil {
		err = k.file.write(body)
	}
	if err != nil {
		k.log.Error("at the next start, a revocation waits for the source", "error", err)
	}
}

// fit returns it as JSON of a number of bytes, and leaves out what the definitions say that say most until that is so. So the
// author of one takes no room from those that say less.
func (d *definedThen) fit(most int) ([]byte, error) {
	body, err := json.Marshal(d)
	excess := len(body) - most
	if err != nil || excess <= 0 {
		return body, err
	}
	sizes := map[string]int{}
	for uid, said := range d.Applications {
		// What was marshaled with the others is marshaled alone.
		one, _ := json.Marshal(said)
		sizes[uid] = len(one)
	}
	leftOut := &metadata{LeftOut: true}
	mark, _ := json.Marshal(leftOut)
	for _, uid := range slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	}) {
		if excess <= 0 || sizes[uid] <= len(mark) {
			break
		}
		d.Applications[uid] = leftOut
		excess -= sizes[uid] - len(mark)
	}
	return json.Marshal(d)
}
