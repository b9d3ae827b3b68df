package application

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// weighTimeout bounds the weighing of all that runs: nothing is sealed, unloaded or
// rolled on meanwhile. What runs in namespaces whose own policies changed has slowAfter:
// a revocation may wait for that.
const weighTimeout = 10 * time.Second

// Weigh implements policy.Weigher: it evaluates what runs by the policies now
// active, without the network where it can.
func (r *Reconciler) Weigh(ctx context.Context, changed policy.Where) (effect policy.Effect, err error) {
	effect.Unloads = map[v1alpha1.Identity]bool{}
	var intents v1alpha1.BpfIntentList
	if err := r.Client.List(ctx, &intents); err != nil {
		return effect, fmt.Errorf("list intents: %w", err)
	}
	timeout := weighTimeout
	if !changed.Everywhere {
		intents.Items = slices.DeleteFunc(intents.Items, func(o v1alpha1.BpfIntent) bool { return !changed.In(o.Spec.Application.Namespace) })
		timeout = slowAfter
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Namespaces that take long come last.
	var slow []*v1alpha1.BpfIntent
	spent := map[string]time.Duration{}
	for i := range intents.Items {
		o := &intents.Items[i]
		if spent[o.Spec.Application.Namespace] >= slowAfter {
			slow = append(slow, o)
			continue
		}
		began := time.Now()
		r.weighIntent(ctx, o, &effect)
		spent[o.Spec.Application.Namespace] += time.Since(began)
	}
	for _, o := range slow {
		r.weighIntent(ctx, o, &effect)
	}
	if ctx.Err() != nil {
		ctrl.LoggerFrom(ctx).Info("not all that runs could be weighed in time: what was not counts for unload protection once it is evaluated")
	}
	return effect, nil
}

// weighIntent adds to an effect what the policies now active do to what one intent has
// nodes run, unless the time is over.
func (r *Reconciler) weighIntent(ctx context.Context, o *v1alpha1.BpfIntent, effect *policy.Effect) {
	if ctx.Err() != nil {
		return
	}
	s, ok := r.Intents.Open(o)
	if !ok || s.Payload.Tombstone {
		return
	}
	id := s.Payload.Application
	app, err := applicationOf(ctx, r.Client, id)
	if err != nil || app == nil || string(app.GetUID()) != s.Payload.UID {
		return
	}
	request, err := r.request(ctx, app, s.Payload)
	if err != nil {
		return
	}
	denies, unloads, byCluster := r.verdicts().weigh(ctx, request, *s.Payload)
	if denies && conditions.IsTrue(app, v1alpha1.ConditionAllowed) {
		effect.Denies = append(effect.Denies, id)
	}
	if unloads {
		effect.Unloads[id] = byCluster
	}
}

// weigh reports whether the policies now active deny a definition, and whether they
// would have what runs unloaded, be it only where nodes are held at the version
// before. One that hangs is not to take the time of the others.
func (vs verdicts) weigh(ctx context.Context, request gate.Request, live intent.Payload) (denies, unloads, byCluster bool) {
	o := lifecycle.Observation{Request: request, Live: &live}
	o.Verdict, o.Err = vs.definition(ctx, request, slowAfter)
	// Whether another version was undone or is held back is not asked here.
	o.Frozen = !o.Verdict.SameVersion(live)
	ctx, cancel := context.WithTimeout(ctx, slowAfter)
	defer cancel()
	o.Running = vs.evaluator.WeighRunning(ctx, o.Request, o.RunningToEvaluate())
	unloads, byCluster = o.Unloads(), o.UnloadsByCluster()
	for _, v := range live.Beside() {
		if unloads {
			break
		}
		beside := lifecycle.ObserveVersion(request, *v)
		beside.Running = vs.evaluator.WeighRunning(ctx, beside.Request, beside.RunningToEvaluate())
		verdict := beside.VersionVerdict(vs.keeper.Revoked())
		unloads, byCluster = verdict.Denied, verdict.ByCluster
	}
	return o.Err == nil && !o.Verdict.Allowed(), unloads, byCluster
}
