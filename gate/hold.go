package gate

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Held is what a verdict about what runs comes to.
type Held struct {
	// judged tells that there is one.
	judged bool
	// pending is why there is none yet; nil where none is under way.
	pending error
	// stands tells that it would be admitted anew.
	stands bool
	// overruled tells that the policies would have it unloaded.
	overruled bool
	// orphaned tells that it is refused, and only because a signer was revoked.
	orphaned bool
}

// Hold judges what runs where its definition gave no verdict that takes its
// place: broken, out of reach, suspended, or refused for another reason. An
// author must not keep a program against a policy by breaking its definition.
func (j *Judge) Hold(ctx context.Context, s Standing) Held { return j.HoldBy(ctx, s, j.Judge) }

// Evaluate answers as Judge.Judge does. Its error is ErrPending where the answer is
// still on its way.
type Evaluate func(context.Context, Request) (Verdict, error)

// ErrPending says that an evaluation is under way and its answer comes later.
var ErrPending = errors.New("evaluation pending")

// HoldBy is Hold with the evaluation of what runs left to the caller, such as one
// that waits for no registry.
func (j *Judge) HoldBy(ctx context.Context, s Standing, evaluate Evaluate) Held {
	if !s.Runs() || len(s.Live.Programs) == 0 || s.stays() || !s.defined() && !s.Hidden {
		return Held{}
	}
	verdict, err := evaluate(ctx, asSealed(s.Request, *s.Live))
	if errors.Is(err, ErrPending) {
		return Held{pending: err}
	}
	if err != nil {
		return Held{}
	}
	decision := verdict.Decision()
	return Held{
		judged: true,
		stands: verdict.Allowed(),
		// What runs has no labels where its definition cannot be read: a policy
		// that asks for one must not unload it for that.
		overruled: !verdict.Allowed() && (decision.UnloadUndefined || decision.Unload && s.defined()),
		orphaned:  verdict.Orphaned(),
	}
}

// Rejudge judges a version that was sealed before as if it were defined today:
// under the labels and annotations of the request's application, where there is
// one, and by whom and where it stands.
func (j *Judge) Rejudge(ctx context.Context, request Request, version intent.Payload) (Verdict, error) {
	return j.Judge(ctx, asSealed(request, version))
}

// asSealed is the request of Rejudge.
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

// Fate is what is to become of a version that runs on some nodes beside another
// one.
type Fate struct {
	// Keeps tells that it may go on, as what cannot be judged may: Known tells that
	// it was.
	Keeps, Known bool
	// Denied tells that it may not, for a policy that the brake has a say over.
	Denied bool
}

// Fate judges a version beside a definition's own; revoked are those of Settle.
func (j *Judge) Fate(ctx context.Context, request Request, version intent.Payload, revoked []string) Fate {
	s := Standing{Request: request, Err: errSuperseded, Live: &version}
	s.Held = j.Hold(ctx, s)
	free, _ := s.Settle(revoked, false)
	braked, _ := s.Settle(revoked, true)
	return Fate{Keeps: free == MoveKeep, Known: s.Held.judged, Denied: free != MoveKeep && braked == MoveKeep}
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
