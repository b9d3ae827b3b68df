package gate

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// RunningVerdict is what a verdict about what runs comes to.
type RunningVerdict struct {
	// evaluated tells that there is one, unknown that it denies for nothing but policies
	// that could not be evaluated.
	evaluated, unknown bool
	// partial tells that the policies were not asked about all of it: they may deny it for
	// more.
	partial bool
	// pending is why there is none yet; nil where none is under way.
	pending error
	// stands tells that it would be admitted anew.
	stands bool
	// overruled tells that the policies would have it unloaded, byCluster that one of
	// the cluster does, and not only those of its namespace.
	overruled, byCluster bool
	// deniedByRecord tells that it could not be evaluated, and that the policies deny
	// it with the sealed signers that are not revoked.
	deniedByRecord bool
}

// EvaluateRunning evaluates what runs where its definition gave no verdict that takes its
// place: broken, out of reach, suspended, or refused for another reason. An
// author must not keep a program against a policy by breaking its definition.
func (j *Evaluator) EvaluateRunning(ctx context.Context, s Observation) RunningVerdict {
	return j.EvaluateRunningBy(ctx, s, j.Evaluate)
}

// EvaluateFunc answers as Evaluator.Judge does. Its error is ErrPending where the answer is
// still on its way.
type EvaluateFunc func(context.Context, Request) (Verdict, error)

// ErrPending says that an evaluation is under way and its answer comes later.
var ErrPending = errors.New("evaluation pending")

// EvaluateRunningBy is EvaluateRunning with the evaluation of what runs left to the caller, such as one
// that waits for no registry.
func (j *Evaluator) EvaluateRunningBy(ctx context.Context, s Observation, evaluate EvaluateFunc) RunningVerdict {
	held, err := j.evaluateRunning(ctx, s, evaluate, apart)
	if err != nil {
		return RunningVerdict{deniedByRecord: j.deniedByRecord(ctx, s)}
	}
	return held
}

// WeighRunning is EvaluateRunning for what unload protection counts. What a revocation unloads by the
// record passes it, so the record is not asked, and nothing outlives ctx.
func (j *Evaluator) WeighRunning(ctx context.Context, s Observation) RunningVerdict {
	held, err := j.evaluateRunning(ctx, s, j.Evaluate, context.WithCancel)
	if err != nil {
		return RunningVerdict{}
	}
	return held
}

// evaluateRunning is EvaluateRunningBy without the record; an error says that what runs could not be evaluated.
// alone is the context of what asks no registry.
func (j *Evaluator) evaluateRunning(ctx context.Context, s Observation, evaluate EvaluateFunc, alone func(context.Context) (context.Context, context.CancelFunc)) (RunningVerdict, error) {
	if !s.Runs() || len(s.Live.Programs) == 0 || s.stays() || !s.defined() && !s.Hidden {
		return RunningVerdict{}, nil
	}
	request := asSealed(s.Request, *s.Live)
	verdict, err := evaluate(ctx, request)
	if err != nil || !verdict.asked() {
		ctx, cancel := alone(ctx)
		overruled, byCluster := j.overrules(ctx, s, request)
		if cancel(); overruled {
			// It is so whatever a registry answers, or that it has no such image.
			return RunningVerdict{evaluated: true, partial: true, overruled: true, byCluster: byCluster}, nil
		}
	}
	if errors.Is(err, ErrPending) {
		return RunningVerdict{pending: err}, nil
	}
	if err == nil && !verdict.Decision().Known() {
		// Of a definition alone, a policy that fails is no answer: the record may have one.
		err = verdict.Unevaluated()
	}
	if err != nil {
		return RunningVerdict{}, err
	}
	decision := verdict.Decision()
	unloads, byCluster := decision.Unloads(s.defined())
	return RunningVerdict{
		evaluated: true,
		unknown:   !decision.Known(),
		partial:   verdict.Unevaluated() != nil || !verdict.asked(),
		stands:    verdict.Allowed(),
		overruled: !verdict.Allowed() && unloads,
		byCluster: byCluster,
	}, nil
}

// overrules reports whether the policies have what runs unloaded by what is known of it
// without a registry. It is asked where they gave no answer: what they deny whatever the
// rest turns out to be is not kept by having the registry hang, or forget the image, nor
// by annotations that are too large for policies to be asked. byCluster reports whether one
// of the cluster does.
func (j *Evaluator) overrules(ctx context.Context, s Observation, sealed Request) (overruled, byCluster bool) {
	_, set := j.active()
	if !set.MayUnload(Shaped{sealed}.input(nil).Application) {
		return false, false
	}
	decision, _, err := j.decideByDefinition(ctx, set, sealed)
	defined := s.defined()
	if err == nil && len(decision.Policies) == 0 {
		sealed.Application, defined = asDefined(*s.Live), false
		decision, _, err = j.decideByDefinition(ctx, set, sealed)
	}
	if err != nil {
		return false, false
	}
	return decision.Unloads(defined)
}

// recordTimeout bounds an evaluation by what was sealed.
const recordTimeout = 10 * time.Second

// apart returns a context for what asks no registry: the time that one took, or its end,
// is not taken from this.
func apart(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(image.CacheOnly(context.WithoutCancel(ctx)), recordTimeout)
}

// deniedByRecord reports whether the policies deny what runs, of which a sealed
// signer is revoked, by the record that nobody outside can edit: the signers in the
// sealed intent. It stands in where a registry is out of reach, and asks none.
func (j *Evaluator) deniedByRecord(ctx context.Context, s Observation) bool {
	trust, _ := j.active()
	if !LostASigner(s.Live, trust.Revoked()) {
		return false
	}
	ctx, cancel := apart(ctx)
	defer cancel()
	i, known, err := j.fromRecord(ctx, s)
	if err != nil {
		var refusal *Refusal
		return errors.As(err, &refusal)
	}
	signed, revoked := s.Live.Signed(), i.trust.Revoked()
	left := maps.Clone(signed)
	maps.DeleteFunc(left, revoked.Revokes)
	now, err := j.byRecord(ctx, i, left)
	if err != nil || now.Allowed() {
		return false
	}
	// Without the bytecode, only what the revocation adds is known to be a reason.
	var admitted policies.Decision
	if !known {
		if admitted, err = j.byRecord(ctx, i, signed); err != nil {
			return false
		}
	}
	// That a policy could not be evaluated is none, nor is what one says now that could
	// not be before.
	return slices.ContainsFunc(now.Denied, func(r policies.Reason) bool {
		return !r.Failed && !slices.ContainsFunc(admitted.Denied, func(before policies.Reason) bool {
			return r == before || before.Failed && strings.HasPrefix(r.Rule, path.Dir(before.Rule)+"/")
		})
	})
}

// byRecord is what the policies say of what runs by signers of its record. The end of
// its time is the end of none but the policies of its namespace.
func (j *Evaluator) byRecord(ctx context.Context, i Inspected, signers map[string]time.Time) (policies.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout/2)
	defer cancel()
	i.evidence = i.trust.Recorded(i.image.Digest, signers)
	return j.decision(ctx, i)
}

// fromRecord is what runs with all sealed signers as its evidence. known tells that
// its bytecode is in the cache.
func (j *Evaluator) fromRecord(ctx context.Context, s Observation) (i Inspected, known bool, err error) {
	shaped, err := Shape(asSealed(s.Request, *s.Live))
	if err != nil {
		return i, false, err
	}
	resolved, err := j.Resolve(ctx, shaped)
	if err != nil {
		return i, false, err
	}
	v := Verified{Resolved: resolved}
	v.trust, v.policies = j.active()
	v.evidence = v.trust.Recorded(s.Live.ImageDigest, s.Live.Signed())
	if v.object, err = j.open(ctx, resolved); err == nil {
		i, err = j.Inspect(ctx, v)
		return i, true, err
	}
	v.object = &object{Image: &image.Image{Resolved: resolved.image}}
	return Inspected{Verified: v, programs: s.Live.Programs}, false, nil
}

// revokedOf are the sealed signers of a version that are revoked, by the trusted times
// that were sealed with them.
func revokedOf(version *intent.Payload, revoked signing.Revocations) []string {
	signed := version.Signed()
	return slices.DeleteFunc(slices.Clone(version.Signers), func(name string) bool { return !revoked.Revokes(name, signed[name]) })
}

// Reevaluate evaluates a version that was sealed before as if it were defined today:
// under the labels and annotations of the request's application, where there is
// one, and by whom and where it stands.
func (j *Evaluator) Reevaluate(ctx context.Context, request Request, version intent.Payload) (Verdict, error) {
	return j.Evaluate(ctx, asSealed(request, version))
}

// asSealed is the request of Reevaluate.
func asSealed(request Request, version intent.Payload) Request {
	today := asDefined(version)
	if request.Application != nil {
		today.SetLabels(request.Application.GetLabels())
		today.SetAnnotations(request.Application.GetAnnotations())
	}
	request.Application, request.Digest = today, version.ImageDigest
	if request.Reader != nil {
		request.Reader = request.Reader.Sealed()
	}
	return request
}

// errSuperseded stands where a definition's verdict is no answer about the
// version before it.
var errSuperseded = errors.New("another version takes its place")

// VersionVerdict is what is to become of a version that runs on some nodes beside another
// one.
type VersionVerdict struct {
	// Keeps tells that it may go on, as what cannot be evaluated may: Known tells that
	// it was, by all there is to know of it.
	Keeps, Known bool
	// Denied tells that it may not, for a policy that unload protection has a say over, and
	// ByCluster that it is one of the cluster.
	Denied, ByCluster bool
}

// EvaluateVersion evaluates a version beside a definition's own; revoked are those of Settle.
func (j *Evaluator) EvaluateVersion(ctx context.Context, request Request, version intent.Payload, revoked signing.Revocations) VersionVerdict {
	s := observeVersion(request, version)
	s.Running = j.EvaluateRunning(ctx, s)
	return s.versionVerdict(revoked)
}

// WeighVersion is EvaluateVersion as WeighRunning is EvaluateRunning.
func (j *Evaluator) WeighVersion(ctx context.Context, request Request, version intent.Payload, revoked signing.Revocations) VersionVerdict {
	s := observeVersion(request, version)
	s.Running = j.WeighRunning(ctx, s)
	return s.versionVerdict(revoked)
}

// observeVersion is the standing of a version beside a definition's own.
func observeVersion(request Request, version intent.Payload) Observation {
	return Observation{Request: request, Err: errSuperseded, Live: &version, Hidden: request.Application == nil}
}

func (s Observation) versionVerdict(revoked signing.Revocations) VersionVerdict {
	free, _ := s.Decide(revoked, false)
	protected, _ := s.Decide(revoked, true)
	return VersionVerdict{Keeps: free == MoveKeep, Known: s.Running.evaluated && !s.Running.unknown && !s.Running.partial, Denied: free != MoveKeep && protected == MoveKeep, ByCluster: s.Running.byCluster}
}

// asDefined is the definition that what runs would have today.
func asDefined(live intent.Payload) v1alpha1.Application {
	spec := v1alpha1.BpfApplicationSpec{
		Bytecode: v1alpha1.Bytecode{Image: live.Image}, NodeSelector: live.NodeSelector,
		Variables: live.Variables, Maps: live.Maps, Programs: live.Programs,
	}
	meta := metav1.ObjectMeta{Name: live.Application.Name, Namespace: live.Application.Namespace}
	if live.Application.Kind == v1alpha1.KindBpfApplication {
		return &v1alpha1.BpfApplication{ObjectMeta: meta, Spec: spec}
	}
	return &v1alpha1.ClusterBpfApplication{ObjectMeta: meta, Spec: spec}
}
