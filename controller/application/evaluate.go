package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// evaluationTimeout bounds one evaluation where nothing else is asked for.
const evaluationTimeout = 20 * time.Second

// evaluate has the gate evaluate the definition, and what runs.
func (r *Reconciler) evaluate(ctx context.Context, st *state) (err error) {
	app, o := st.app, &st.observed
	timeout := cmp.Or(r.EvaluationTimeout, evaluationTimeout)
	weighed := r.Keeper.Weighed(app.GetNamespace())
	o.Live = st.sealed.Payload
	if o.Request, err = r.request(ctx, app, o.Live); err != nil {
		return err
	}
	o.Verdict, o.Err = r.evaluateDefinition(ctx, o.Request, timeout)
	if o.Err == nil {
		r.tags.keep(app, o.Verdict.Image().Digest, r.now())
		r.lookUp(ctx, app, *o)
	}
	// What runs has time of its own: the definition may have taken all of its.
	r.evaluateRunning(ctx, o)
	if by := o.Verdict.Revision(); by != "" && by != weighed || r.Keeper.Weighed(app.GetNamespace()) != weighed || r.rulesChanged(app.GetNamespace()) {
		return errOverruled
	}
	return nil
}

// rulesChanged reports whether signers or policies changed, for a namespace, and were not
// weighed yet.
func (r *Reconciler) rulesChanged(namespace string) bool {
	return r.Evaluator.RevisionIn(namespace) != r.Keeper.Weighed(namespace)
}

// evaluateDefinition asks the gate about a definition, no longer than its namespace may.
func (r *Reconciler) evaluateDefinition(ctx context.Context, request gate.Request, timeout time.Duration) (gate.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, leave := r.limiter.enter(ctx, request.Application.GetNamespace())
	defer leave()
	verdict, err := r.Evaluator.Evaluate(ctx, request)
	if err != nil && errors.Is(context.Cause(ctx), errQueued) {
		err = errQueued
	}
	return verdict, err
}

// request is what the gate is asked about a definition.
func (r *Reconciler) request(ctx context.Context, app application, live *intent.Payload) (gate.Request, error) {
	generation, err := gate.Generation(app)
	if err != nil {
		return gate.Request{}, err
	}
	id := app.Identity()
	request := gate.Request{Application: app, Requester: Requester(app), Digest: r.tags.digest(id, generation), Changed: r.requests.at(id)}
	if r.Images != nil {
		request.Reader = r.Images(ctx, app)
	}
	if request.Digest == "" && live != nil && !live.Tombstone && live.Generation == generation {
		request.Digest = live.ImageDigest
	}
	request.Namespace, err = r.namespace(ctx, id)
	return request, err
}

// namespace is what policies see of an application's namespace; the zero value for
// an application of the cluster.
func (r *Reconciler) namespace(ctx context.Context, id v1alpha1.Identity) (policies.Namespace, error) {
	if id.Namespace == "" {
		return policies.Namespace{}, nil
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(namespaceKind)
	if err := r.Client.Get(ctx, types.NamespacedName{Name: id.Namespace}, &ns); err != nil {
		return policies.Namespace{}, fmt.Errorf("get namespace of %s: %w", id, err)
	}
	return policies.Namespace{Name: id.Namespace, Labels: ns.Labels}, nil
}

// versionVerdict is what is to become of a version beside another one, asked no longer than
// its namespace may.
func (r *Reconciler) versionVerdict(ctx context.Context, request gate.Request, version intent.Payload) lifecycle.VersionVerdict {
	ctx, done := r.limitEvaluation(ctx, version.Application.Namespace)
	defer done()
	o := lifecycle.ObserveVersion(request, version)
	o.Running = r.Evaluator.EvaluateRunning(ctx, o.Request, o.RunningToEvaluate())
	return o.VersionVerdict(r.Keeper.Revoked())
}

// mayKeep reports whether a version may run on beside another one. If unload protection
// applies to it, it is counted; if it cannot be counted, it is kept.
func (r *Reconciler) mayKeep(ctx context.Context, request gate.Request, version intent.Payload) bool {
	verdict := r.versionVerdict(ctx, request, version)
	if !verdict.Denied {
		return verdict.Keeps
	}
	_, held, err := r.Keeper.Holds(ctx, request.Application.Identity(), verdict.ByCluster)
	return held || err != nil
}

// reevaluate evaluates a version that was sealed before, no longer than its namespace
// may.
func (r *Reconciler) reevaluate(ctx context.Context, request gate.Request, version intent.Payload) (gate.Verdict, error) {
	ctx, done := r.limitEvaluation(ctx, version.Application.Namespace)
	defer done()
	return r.Evaluator.Reevaluate(ctx, request, version)
}

// limitEvaluation is the time and the place that one evaluation of a namespace may take.
func (r *Reconciler) limitEvaluation(ctx context.Context, namespace string) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.EvaluationTimeout, evaluationTimeout))
	ctx, leave := r.limiter.enter(ctx, namespace)
	return ctx, func() {
		leave()
		cancel()
	}
}

// evaluateRunning evaluates what runs by itself, unless the definition replaces it, or that
// was done. If many evaluations of the namespace wait for registries, it asks none.
func (r *Reconciler) evaluateRunning(ctx context.Context, o *lifecycle.Observation) {
	if o.Running != (gate.RunningVerdict{}) {
		return
	}
	namespace := o.Request.Application.GetNamespace()
	if r.limiter.full(namespace) {
		ctx = registry.CacheOnly(ctx)
	}
	ctx, done := r.limitEvaluation(ctx, namespace)
	defer done()
	o.Running = r.Evaluator.EvaluateRunning(ctx, o.Request, o.RunningToEvaluate())
}

// applyUnloadProtection reports whether unload protection keeps what a policy unloads, and
// the revision that confirms it. What no policy unloads is noted too. It takes the
// versions from others.denied that unload protection keeps.
func (r *Reconciler) applyUnloadProtection(ctx context.Context, st *state, others *otherVersions) (revision string, protected bool, err error) {
	id, o := st.app.Identity(), st.observed
	if !o.Unloads() && len(others.denied) == 0 {
		if o.Runs() && o.Err == nil && !o.Undecided() && o.Verdict.Unevaluated() == nil && !others.unknown {
			r.Keeper.Spares(id)
		}
		return "", false, nil
	}
	denied := others.denied
	others.denied = nil
	for _, v := range denied {
		_, protected, err := r.Keeper.Holds(ctx, id, v.byCluster)
		if err != nil {
			return "", false, err
		}
		if !protected {
			others.denied = append(others.denied, v)
		}
	}
	if !o.Unloads() {
		return "", false, nil
	}
	return r.Keeper.Holds(ctx, id, o.UnloadsByCluster())
}
