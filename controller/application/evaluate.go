package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// evaluationTimeout bounds one evaluation where nothing else is asked for.
const evaluationTimeout = 20 * time.Second

// verdicts asks the gate about definitions and versions, each no longer than its namespace may.
type verdicts struct {
	evaluator *gate.Evaluator
	keeper    *policy.Keeper
	limiter   *limiter
	// timeout bounds one evaluation.
	timeout time.Duration
}

func (r *Reconciler) verdicts() verdicts {
	return verdicts{r.Evaluator, r.Keeper, &r.limiter, cmp.Or(r.EvaluationTimeout, evaluationTimeout)}
}

// evaluate has the gate evaluate the definition, and what runs.
func (r *Reconciler) evaluate(ctx context.Context, st *state) (err error) {
	app, o := st.app, &st.observed
	asked, weighed := r.verdicts(), r.Keeper.Weighed(app.GetNamespace())
	o.Live = st.sealed.Payload
	if o.Request, err = r.request(ctx, app, o.Live); err != nil {
		return err
	}
	o.Verdict, o.Err = asked.definition(ctx, o.Request, asked.timeout)
	if o.Err == nil {
		r.tags.keep(app, o.Verdict.Image().Digest, r.now())
		r.tags.lookUp(ctx, app, *o, r.now())
	}
	// What runs has time of its own: the definition may have taken all of its.
	asked.running(ctx, o)
	if by := o.Verdict.Revision(); by != "" && by != weighed || r.Keeper.Weighed(app.GetNamespace()) != weighed || asked.rulesChanged(app.GetNamespace()) {
		return errOverruled
	}
	return nil
}

// rulesChanged reports whether signers or policies changed, for a namespace, and were not
// weighed yet.
func (vs verdicts) rulesChanged(namespace string) bool {
	return vs.evaluator.RevisionIn(namespace) != vs.keeper.Weighed(namespace)
}

// definition asks the gate about a definition, no longer than its namespace may.
func (vs verdicts) definition(ctx context.Context, request gate.Request, timeout time.Duration) (gate.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, leave := vs.limiter.enter(ctx, request.Application.GetNamespace())
	defer leave()
	verdict, err := vs.evaluator.Evaluate(ctx, request)
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
	request := gate.Request{Application: app, Requester: Requester(app), Digest: r.tags.digest(id, generation), Changed: r.requests.at(id), Sealed: live}
	if r.Images != nil {
		request.Reader = r.Images(ctx, app)
	}
	if request.Digest == "" && live != nil && !live.Tombstone && live.Generation == generation {
		request.Digest = live.ImageDigest
	}
	request.Namespace, err = namespaceOf(ctx, r.Client, id)
	return request, err
}

// namespaceOf is what policies see of an application's namespace; the zero value for
// an application of the cluster.
func namespaceOf(ctx context.Context, from client.Reader, id v1alpha1.Identity) (policies.Namespace, error) {
	if id.Namespace == "" {
		return policies.Namespace{}, nil
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(namespaceKind)
	if err := from.Get(ctx, types.NamespacedName{Name: id.Namespace}, &ns); err != nil {
		return policies.Namespace{}, fmt.Errorf("get namespace of %s: %w", id, err)
	}
	return policies.Namespace{Name: id.Namespace, Labels: ns.Labels}, nil
}

// version is what is to become of a version beside another one, asked no longer than
// its namespace may.
func (vs verdicts) version(ctx context.Context, request gate.Request, version intent.Payload) lifecycle.VersionVerdict {
	ctx, done := vs.limit(ctx, version.Application.Namespace)
	defer done()
	o := lifecycle.ObserveVersion(request, version)
	o.Running = vs.evaluator.EvaluateRunning(ctx, o.Request, o.RunningToEvaluate())
	return o.VersionVerdict(vs.keeper.Revoked())
}

// mayKeep reports whether a version may run on beside another one. If unload protection
// applies to it, it is counted; if it cannot be counted, it is kept.
func (vs verdicts) mayKeep(ctx context.Context, request gate.Request, version intent.Payload) bool {
	verdict := vs.version(ctx, request, version)
	if !verdict.Denied {
		return verdict.Keeps
	}
	_, held, err := vs.keeper.Holds(ctx, request.Application.Identity(), verdict.ByCluster)
	return held || err != nil
}

// again evaluates a version that was sealed before, no longer than its namespace
// may.
func (vs verdicts) again(ctx context.Context, request gate.Request, version intent.Payload) (gate.Verdict, error) {
	ctx, done := vs.limit(ctx, version.Application.Namespace)
	defer done()
	return vs.evaluator.Reevaluate(ctx, request, version)
}

// limit is the time and the place that one evaluation of a namespace may take.
func (vs verdicts) limit(ctx context.Context, namespace string) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, vs.timeout)
	ctx, leave := vs.limiter.enter(ctx, namespace)
	return ctx, func() {
		leave()
		cancel()
	}
}

// running evaluates what runs by itself, unless the definition replaces it, or that
// was done. If many evaluations of the namespace wait for registries, it asks none.
func (vs verdicts) running(ctx context.Context, o *lifecycle.Observation) {
	if o.Running != (gate.RunningVerdict{}) {
		return
	}
	namespace := o.Request.Application.GetNamespace()
	if vs.limiter.full(namespace) {
		ctx = registry.CacheOnly(ctx)
	}
	ctx, done := vs.limit(ctx, namespace)
	defer done()
	o.Running = vs.evaluator.EvaluateRunning(ctx, o.Request, o.RunningToEvaluate())
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
