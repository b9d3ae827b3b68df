package application

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// withdrawGrants takes from readers of maps what the definition does not grant any more, whatever else becomes of it, and what
// policies deny: an evaluation may wait for a registry. What a policy unloads is left to settle.
func (r *Reconciler) withdrawGrants(ctx context.Context, st *state) (err error) {
	st.sealed, err = r.Intents.WithdrawGrants(ctx, st.sealed, st.app.Body().Maps)
	if err != nil || !grants(st.sealed.Payload) {
		return err
	}
	o := lifecycle.Observation{}
	if o.Request, err = r.request(ctx, st.app, st.sealed.Payload); err != nil {
		return err
	}
	asked := o.Request
	asked.Passing = true
	o.Verdict, o.Err = r.Evaluator.Evaluate(registry.CacheOnly(ctx), asked)
	return withdrawDenied(ctx, r, st, o, false)
}

// withdrawDenied withdraws what policies deny of the grants of what runs, and reports the rules. isKept says that what runs keeps
// running, whatever a policy unloads.
func withdrawDenied(ctx context.Context, r *Reconciler, st *state, o lifecycle.Observation, isKept bool) (err error) {
	o.Live = st.sealed.Payload
	denied := r.Evaluator.DeniedGrants(ctx, o.Request, o.RunningToEvaluate())
	if len(denied.Reasons) == 0 || denied.Unloads && !isKept {
		return nil
	}
	if r.verdicts().rulesChanged(st.app.GetNamespace()) {
		return errOverruled
	}
	st.sealed, err = r.Intents.WithdrawGrants(ctx, st.sealed, denied.Kept)
	if err == nil && st.sealed.Payload.Serial != o.Live.Serial {
		r.Events.Eventf(st.app, nil, corev1.EventTypeWarning, "ReadersWithdrawn", "Reconcile", "%s", denied.Why())
	}
	return err
}

// grants reports whether an intent has readers of maps.
func grants(p *intent.Payload) bool {
	if p == nil || p.Tombstone {
		return false
	}
	for _, m := range p.Maps {
		if len(m.Export) > 0 || m.Metrics != nil {
			return true
		}
	}
	return false
}
