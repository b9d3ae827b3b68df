package history

import (
	"slices"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// DeniedBy is the definition of an application as it was observed, if it is denied and is not what runs; else nil.
func DeniedBy(o lifecycle.Observation, live *intent.Payload) (*Denied, error) {
	isEvaluated := o.Request.Application != nil && o.Err == nil
	if !isEvaluated || o.Undone || o.Verdict.Allowed() {
		return nil, nil
	}
	generation, err := gate.Generation(o.Request.Application)
	if err != nil || live != nil && live.Generation == generation {
		return nil, err
	}
	evidence, spec := o.Verdict.Evidence(), o.Request.Application.Body()
	d := &Denied{
		Definition: generation, Image: spec.Bytecode.Image, Digest: o.Verdict.Image().Digest, Signers: evidence.Signers(), Policies: o.Verdict.PolicyRevision(),
	}
	for _, reason := range o.Verdict.Decision().Denied {
		if !slices.Contains(d.Rules, reason.Rule) {
			d.Rules = append(d.Rules, reason.Rule)
		}
	}
	d.Changes = ChangesOfDefinition(live, spec, d.Digest)
	return d, nil
}
