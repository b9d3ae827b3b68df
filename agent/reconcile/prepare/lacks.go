package prepare

import (
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/placement"
)

// lacks says what this node is known not to support of what a payload leaves to it. The
// rest is tried by loading. It fails with an error that decide.IsPending while functions of
// the kernel are looked for.
func (v *Versions) lacks(payload intent.Payload) (loader.Lacks, error) {
	lacks := loader.Lacks{}
	for choice, c := range plan.Choices(payload) {
		for i, set := range c.Sets {
			if c.Must() && i == len(c.Sets)-1 {
				break
			}
			for _, at := range set.Attachments {
				err := v.supports(at)
				if decide.IsPending(err) || err != nil && !loader.IsRejection(err) {
					return nil, err
				}
				if err != nil {
					lacks[[2]int{choice, i}] = err
					break
				}
			}
		}
	}
	return lacks, nil
}

// supports returns why this node's kernel does not support an attachment: it lacks the hook,
// or the function or tracepoint.
func (v *Versions) supports(at v1alpha1.Attachment) error {
	h, ok := hook.Lookup(at.Hook)
	if !ok {
		return nil
	}
	if v.Profile != nil {
		if why := placement.OfAttachment(at).Missing(*v.Profile); why != "" {
			return &build.UnfitError{Lacks: why}
		}
	} else if err := attach.Probe(h); err != nil {
		return err
	}
	return v.LookupRound.Supports(at)
}
