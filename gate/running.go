package gate

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing/collect"
)

// RunningVerdict is the evaluation of a running version by itself. The zero value says
// nothing about it.
type RunningVerdict struct {
	// Evaluated says that there is a decision. Undetermined says that it denies only for
	// policies that could not be evaluated.
	Evaluated, Undetermined bool
	// Partial says that the policies did not see all of the version: there may be more
	// reasons to deny it.
	Partial bool
	// Pending is why there is no decision yet; nil unless an evaluation is under way.
	Pending error
	// Allowed says that the version would be admitted anew.
	Allowed bool
	// Unloads says that the policies unload the version, UnloadsByCluster that one of the
	// cluster does, and not only those of its namespace.
	Unloads, UnloadsByCluster bool
	// Stale says that its registry could not be asked, and what was collected before counts.
	// Elsewhere says that there is no decision, and only since repositories that signers name
	// could not be read.
	Stale, Elsewhere bool
	// DeniedByRecord says that the version could not be evaluated, and that the policies
	// deny it with the sealed signers that are not revoked.
	DeniedByRecord bool
}

// EvaluateRunning evaluates a running version by itself, for a definition whose verdict does
// not replace it: broken, out of reach, suspended, or denied for another reason. An
// author must not keep a program against a policy by breaking its definition. The
// request is the definition's, without an Application if that cannot be read. A nil
// version, and one that runs nothing, has the zero RunningVerdict.
func (e *Evaluator) EvaluateRunning(ctx context.Context, definition Request, running *intent.Payload) RunningVerdict {
	return e.EvaluateRunningBy(ctx, definition, running, e.Evaluate)
}

// EvaluateFunc answers as Evaluator.Evaluate does. Its error is ErrPending while the
// answer is on its way.
type EvaluateFunc func(context.Context, Request) (Verdict, error)

// ErrPending says that an evaluation is under way and its answer comes later.
var ErrPending = errors.New("evaluation pending")

// EvaluateRunningBy is EvaluateRunning with another Evaluate, such as one that waits for
// no registry.
func (e *Evaluator) EvaluateRunningBy(ctx context.Context, definition Request, running *intent.Payload, evaluate EvaluateFunc) RunningVerdict {
	verdict, err := e.evaluateRunning(ctx, definition, running, evaluate, cacheOnly)
	if err != nil {
		return RunningVerdict{DeniedByRecord: e.deniedByRecord(ctx, definition, *running)}
	}
	return verdict
}

// WeighRunning is EvaluateRunning for what unload protection counts. Unload protection does
// not apply to what a revocation unloads by the sealed record, so the record is not
// evaluated, and nothing outlives ctx.
func (e *Evaluator) WeighRunning(ctx context.Context, definition Request, running *intent.Payload) RunningVerdict {
	verdict, err := e.evaluateRunning(ctx, definition, running, e.Evaluate, context.WithCancel)
	if err != nil {
		return RunningVerdict{Elsewhere: errors.As(err, new(*collect.RepositoryError))}
	}
	return verdict
}

// evaluateRunning is EvaluateRunningBy without the sealed record. An error says that the
// version could not be evaluated. local makes the context of policies that are evaluated
// without a registry.
func (e *Evaluator) evaluateRunning(ctx context.Context, definition Request, running *intent.Payload, evaluate EvaluateFunc,
	local func(context.Context) (context.Context, context.CancelFunc)) (RunningVerdict, error) {
	if running == nil || running.Tombstone || len(running.Programs) == 0 {
		return RunningVerdict{}, nil
	}
	request := asSealed(definition, *running)
	verdict, err := evaluate(ctx, request)
	if err != nil || !verdict.asked() {
		ctx, cancel := local(ctx)
		unloads, byCluster := e.unloadsByDefinition(ctx, definition, *running)
		if cancel(); unloads {
			// No answer of a registry changes that, nor that it has no such image.
			return RunningVerdict{Evaluated: true, Partial: true, Unloads: true, UnloadsByCluster: byCluster}, nil
		}
	}
	if errors.Is(err, ErrPending) {
		return RunningVerdict{Pending: err}, nil
	}
	if err == nil && !verdict.Decision().Known() {
		// Of a definition alone, a policy that fails is no answer: the record may have one.
		err = verdict.Unevaluated()
	}
	if err != nil {
		return RunningVerdict{}, err
	}
	decision := verdict.Decision()
	unloads, byCluster := decision.Unloads(definition.Application != nil)
	return RunningVerdict{
		Evaluated:        true,
		Undetermined:     !decision.Known(),
		Partial:          verdict.Unevaluated() != nil || !verdict.asked(),
		Stale:            !verdict.Stale().IsZero(),
		Allowed:          verdict.Allowed(),
		Unloads:          !verdict.Allowed() && unloads,
		UnloadsByCluster: byCluster,
	}, nil
}

// unloadsByDefinition reports whether the policies unload a version by what is known of it
// without a registry. It is asked where they gave no answer. A registry that hangs or
// forgets the image keeps nothing that is denied whatever the registry answers; nor do
// annotations that are too large for policies. byCluster reports whether a policy of the
// cluster unloads it.
func (e *Evaluator) unloadsByDefinition(ctx context.Context, definition Request, running intent.Payload) (unloads, byCluster bool) {
	_, set := e.active()
	sealed := asSealed(definition, running)
	if !set.MayUnload(Shaped{sealed}.input(nil).Application) {
		return false, false
	}
	decision, _, err := e.decideByDefinition(ctx, set, sealed)
	defined := definition.Application != nil
	if err == nil && len(decision.Policies) == 0 {
		sealed.Application, defined = asDefined(running), false
		decision, _, err = e.decideByDefinition(ctx, set, sealed)
	}
	if err != nil {
		return false, false
	}
	return decision.Unloads(defined)
}

// recordTimeout bounds an evaluation by the sealed record.
const recordTimeout = 10 * time.Second

// cacheOnly returns a context for what asks no registry. It does not end with ctx: a
// registry may have used up all of its time.
func cacheOnly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(registry.CacheOnly(context.WithoutCancel(ctx)), recordTimeout)
}

// Reevaluate evaluates a version that was sealed before as if it were defined today:
// with the labels and annotations of the request's application, if there is one, and
// with the request's requester and namespace.
func (e *Evaluator) Reevaluate(ctx context.Context, request Request, version intent.Payload) (Verdict, error) {
	return e.Evaluate(ctx, asSealed(request, version))
}

// asSealed is the request of Reevaluate.
func asSealed(request Request, version intent.Payload) Request {
	today := asDefined(version)
	if request.Application != nil {
		today.SetLabels(request.Application.GetLabels())
		today.SetAnnotations(request.Application.GetAnnotations())
	}
	request.Application, request.Digest, request.Sealed = today, version.ImageDigest, &version
	if request.Reader != nil {
		request.Reader = request.Reader.Sealed()
	}
	return request
}

// asDefined is the definition that a sealed version would have today.
func asDefined(version intent.Payload) v1alpha1.Application {
	spec := v1alpha1.BpfApplicationSpec{
		Bytecode: v1alpha1.Bytecode{Image: version.Image}, NodeSelector: version.NodeSelector,
		Variables: version.Variables, Maps: version.Maps, Programs: version.Programs, Alternatives: version.Alternatives,
	}
	meta := metav1.ObjectMeta{Name: version.Application.Name, Namespace: version.Application.Namespace}
	if version.Application.Kind == v1alpha1.KindBpfApplication {
		return &v1alpha1.BpfApplication{ObjectMeta: meta, Spec: spec}
	}
	return &v1alpha1.ClusterBpfApplication{ObjectMeta: meta, Spec: spec}
}
