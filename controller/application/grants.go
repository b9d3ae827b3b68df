package application

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// withdrawGrants takes from readers of maps what the definition does not grant any more, whatever else becomes of it, and what
// policies deny: an evaluation may wait for a registry. What a policy unloads is left to settle, and so are intents that are behind
// nodes: what is sealed over them is what is defined, if that is allowed.
func (r *Reconciler) withdrawGrants(ctx context.Context, st *state) (err error) {
	if st.sealed.IsBehindNodes() {
		return nil
	}
	// It is behind no node, which the request would be asked for.
	st.sealed, err = withdrawUndefined(ctx, r, st, st.sealed, gate.Request{})
	if err != nil || !grants(st.sealed.Payload) {
		return err
	}
	o := lifecycle.Observation{Live: st.sealed.Payload}
	if o.Request, err = r.request(ctx, st.app, st.sealed.Payload); err != nil {
		return err
	}
	asked := o.Request
	asked.Passing = true
	o.Verdict, o.Err = r.Evaluator.Evaluate(registry.CacheOnly(ctx), asked)
	st.sealed, err = withdrawDenied(ctx, r, st, st.sealed, o.Request, o.RunningToEvaluate(), false)
	return err
}

// withdrawLast is withdrawGrants of what is sealed in the end: also behind unload protection, and where nodes are ahead of it still.
func withdrawLast(ctx context.Context, r *Reconciler, st *state) (err error) {
	o := st.observed
	st.sealed, err = withdrawUndefined(ctx, r, st, st.sealed, o.Request)
	if err != nil {
		return err
	}
	o.Live = st.sealed.Payload
	st.sealed, err = withdrawDenied(ctx, r, st, st.sealed, o.Request, o.RunningToEvaluate(), true)
	return err
}

// withdrawUndefined withdraws what the definition does not grant, which is that of the request.
func withdrawUndefined(ctx context.Context, r *Reconciler, st *state, s intents.Intent, request gate.Request) (intents.Intent, error) {
	if !grants(s.Payload) {
		return s, nil
	}
	return r.Intents.WithdrawGrants(ctx, s, r.verdicts().withoutReaders(ctx, st.nodes, s, request), st.app.Body().Maps, nil)
}

// withdrawDenied withdraws what policies deny of the grants of what runs, and of each version beside it, and reports the rules. running is
// the intent's own version, if it is to be evaluated by itself. isKept says that what runs keeps running, whatever a policy unloads.
func withdrawDenied(ctx context.Context, r *Reconciler, st *state, s intents.Intent, request gate.Request, running *intent.Payload,
	isKept bool) (intents.Intent, error) {
	if !grants(s.Payload) {
		return s, nil
	}
	var why string
	denied := func(v *intent.Payload, kept *map[string]v1alpha1.Map) bool {
		d := r.Evaluator.DeniedGrants(ctx, request, v)
		if len(d.Reasons) == 0 || d.Unloads && !isKept {
			return false
		}
		*kept, why = d.Kept, cmp.Or(why, d.Why())
		return true
	}
	own, beside := s.Payload.Maps, map[int64]map[string]v1alpha1.Map{}
	denied(running, &own)
	for _, v := range s.Payload.Beside() {
		narrowed, _ := v.Narrowed(own)
		if kept := narrowed.Maps; denied(&narrowed, &kept) {
			beside[v.VersionSerial()] = kept
		}
	}
	if why == "" {
		return s, nil
	}
	if r.verdicts().rulesChanged(s.Payload.Application.Namespace) {
		return s, errOverruled
	}
	after, err := r.Intents.WithdrawGrants(ctx, s, r.verdicts().withoutReaders(ctx, st.nodes, s, request), own, beside)
	if err == nil && after.Payload.Serial != s.Payload.Serial && st.app != nil {
		r.Events.Eventf(st.app, nil, corev1.EventTypeWarning, "ReadersWithdrawn", "Reconcile", "%s", why)
	}
	return after, err
}

// withoutReaders is a live intent as it is sealed again without some readers: where it is behind nodes and may run no more itself, it comes to
// no further one.
func (vs verdicts) withoutReaders(ctx context.Context, nodes nodereports.Snapshot, s intents.Intent, request gate.Request) intent.Payload {
	if s.IsBehindNodes() {
		if v := vs.version(registry.CacheOnly(ctx), request, s.Payload.Alone()); v.Keeps || v.Denied {
			return overNodes(nodes, s, s.Payload.Previous != nil)
		}
	}
	return *s.Payload
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
