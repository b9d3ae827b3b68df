// Package application brings applications from their definition to a sealed
// intent, and tells how they are doing.
//
// It is one reconciler for both scopes. It decides nothing the gate decides and
// counts nothing the status room counts: it says when, writes one BpfIntent per
// application, and patches one status.
package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/controller/keys"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
)

// Reconciler holds intents and statuses to the applications of a cluster.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads past the cache: what is about to be unloaded because it is gone
	// is looked for once more.
	Live   client.Reader
	Judge  *gate.Judge
	Keeper *policy.Keeper
	// Images reads an application's image with the pull Secrets it names; nil
	// means as the Judge does.
	Images func(context.Context, v1alpha1.Application) *image.Reader
	// Keys seal, and open what this controller, or one before it, sealed.
	Keys func() keys.Keys
	// Events tells people; Metrics counts.
	Events  events.EventRecorder
	Metrics *Metrics
	// Describe writes down for people what a verdict rests on; nil means not to.
	Describe func(context.Context, gate.Verdict) error
	// Agents tells which nodes an agent runs on; nil means on every one.
	Agents func(ctx context.Context) (map[string]bool, error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Interval is how often an application that is well is judged again; zero
	// means ten minutes. JudgeTimeout bounds one judgement; zero means 20 s.
	Interval, JudgeTimeout time.Duration

	tags  tags
	lanes lanes
}

// application is either scope's kind as the client takes it.
type application interface {
	client.Object
	v1alpha1.Application
	GetConditions() []metav1.Condition
	SetConditions([]metav1.Condition)
}

// newApplication is an empty object of an identity's kind; nil where nothing can
// bear that identity, such as one that a node made up.
func newApplication(id v1alpha1.Identity) application {
	switch {
	case id.Kind == v1alpha1.KindBpfApplication && id.Namespace != "":
		return &v1alpha1.BpfApplication{}
	case id.Kind == v1alpha1.KindClusterBpfApplication && id.Namespace == "":
		return &v1alpha1.ClusterBpfApplication{}
	}
	return nil
}

// errNobody says that an identity is none.
var errNobody = errors.New("nothing can bear that name")

// Reconcile brings one application up to date, whether it is still there or
// not. What it looked at may have been out of date, which is nobody's fault: it
// looks again in a moment.
func (r *Reconciler) Reconcile(ctx context.Context, id v1alpha1.Identity) (ctrl.Result, error) {
	again, err := r.reconcile(ctx, id)
	if errors.Is(err, errBehind) || errors.Is(err, errOverruled) || apierrors.IsConflict(err) {
		ctrl.LoggerFrom(ctx).V(1).Info("looking again", "application", id.String(), "reason", err.Error())
		return ctrl.Result{RequeueAfter: settle}, nil
	}
	return again, err
}

func (r *Reconciler) reconcile(ctx context.Context, id v1alpha1.Identity) (ctrl.Result, error) {
	if err := r.Keeper.Wait(ctx); err != nil {
		return ctrl.Result{}, err
	}
	app, err := r.application(ctx, r.Client, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	held, err := r.sealed(ctx, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	said, err := r.told(ctx, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	var (
		mine   sealed
		others []sealed
	)
	for _, s := range held {
		s.seen = said[s.payload.UID].serial
		if app != nil && s.payload.UID == string(app.GetUID()) {
			mine = s
			continue
		}
		if s.gone, err = r.gone(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
		others = append(others, s)
	}
	next, judged, errs := time.Duration(0), true, []error(nil)
	switch {
	case app == nil:
		r.tags.forget(id)
		r.Metrics.forget(id)
	case mine.payload == nil && r.lanes.full(id.Namespace):
		next, judged = later(), false
	default:
		mine.seen, mine.runs = said[string(app.GetUID())].serial, runs(said, others)
		next, err = r.advance(ctx, app, mine)
		judged, errs = err == nil, append(errs, err, r.replace(ctx, app, held, said))
	}
	for _, s := range others {
		if !judged && r.waits(ctx, app, s) {
			continue
		}
		after, err := r.retire(ctx, s)
		next, errs = sooner(next, after), append(errs, err)
	}
	return ctrl.Result{RequeueAfter: next}, errors.Join(errs...)
}

// runs tells whether nodes run anything by a name: by what they say, or by
// intents of applications that bore it before.
func runs(said map[string]word, others []sealed) bool {
	for _, w := range said {
		if w.runs {
			return true
		}
	}
	return slices.ContainsFunc(others, func(s sealed) bool { return !s.payload.Tombstone })
}

// sooner is the earlier of two times to come back; zero means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// application is the object of an identity; nil where it is not there, or on
// its way out.
func (r *Reconciler) application(ctx context.Context, from client.Reader, id v1alpha1.Identity) (application, error) {
	app := newApplication(id)
	if app == nil {
		return nil, reconcile.TerminalError(fmt.Errorf("get %s %s: %w", id.Kind, id, errNobody))
	}
	err := from.Get(ctx, types.NamespacedName{Namespace: id.Namespace, Name: id.Name}, app)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s %s: %w", id.Kind, id, err)
	case !app.GetDeletionTimestamp().IsZero():
		return nil, nil
	}
	return app, nil
}

// errOverruled says that the policies changed while an application was judged.
var errOverruled = errors.New("signers or policies changed meanwhile; judging again")

// advance judges one application, seals what follows, and reports. It returns
// when to come back.
func (r *Reconciler) advance(ctx context.Context, app application, mine sealed) (time.Duration, error) {
	standing, err := r.judge(ctx, app, mine.payload)
	if err != nil {
		return 0, err
	}
	mine, hold, err := r.undo(ctx, app, mine, &standing)
	if err != nil {
		return 0, err
	}
	revision, braked, err := r.brake(ctx, app, standing)
	if err != nil {
		return 0, err
	}
	move, why := standing.Settle(r.Keeper.Revoked(), braked)
	if braked && move == gate.MoveKeep {
		why = fmt.Sprintf("the brake on mass denial holds it; to let it go, annotate any ClusterBpfPolicy or BpfSigner with %s=%s", policy.AnnotationConfirm, revision)
	}
	overtaken, wait := r.overtaken(mine)
	if overtaken && move == gate.MoveKeep && why == "" {
		move = gate.MoveSeal
	}
	mine, err = r.write(ctx, app, mine, standing, move, why)
	if err != nil {
		return 0, err
	}
	mine, progress, err := r.roll(ctx, app, mine, standing, hold)
	if err != nil {
		return 0, err
	}
	if err := r.report(ctx, app, mine, standing, progress, why); err != nil {
		return 0, err
	}
	if standing.Err != nil {
		return 0, standing.Err
	}
	if r.Describe != nil {
		if err := r.Describe(ctx, standing.Verdict); err != nil {
			return 0, err
		}
	}
	return sooner(sooner(r.again(standing), wait), progress.After), nil
}

// again is when a verdict is to be looked at again without an event: soon where
// a signature may yet be pushed.
func (r *Reconciler) again(s gate.Standing) time.Duration {
	interval := cmp.Or(r.Interval, 10*time.Minute)
	if evidence := s.Verdict.Evidence(); !s.Verdict.Allowed() && len(evidence.Signatures) == 0 {
		return min(interval, 30*time.Second)
	}
	return interval
}

// judgeTimeout bounds one judgement where nothing else is asked for.
const judgeTimeout = 20 * time.Second

// judge asks the gate about a definition, and about what runs.
func (r *Reconciler) judge(ctx context.Context, app application, live *intent.Payload) (gate.Standing, error) {
	timeout := cmp.Or(r.JudgeTimeout, judgeTimeout)
	weighed := r.Keeper.Weighed()
	s := gate.Standing{Live: live}
	var err error
	if s.Request, err = r.request(ctx, app, live); err != nil {
		return s, err
	}
	s.Verdict, s.Err = r.ask(ctx, s.Request, timeout)
	if s.Err == nil {
		r.tags.keep(app, s.Verdict.Image().Digest)
	}
	// A definition that took all of its time leaves what runs its own.
	holding, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.Held = r.Judge.Hold(holding, s)
	if said := s.Verdict.Revision(); said != "" && said != weighed || r.Judge.Revision() != weighed || r.Keeper.Weighed() != weighed {
		return s, errOverruled
	}
	return s, nil
}

// ask asks the gate about a definition, no longer than its namespace may.
func (r *Reconciler) ask(ctx context.Context, request gate.Request, timeout time.Duration) (gate.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, leave := r.lanes.enter(ctx, request.Application.GetNamespace())
	defer leave()
	verdict, err := r.Judge.Judge(ctx, request)
	if err != nil && errors.Is(context.Cause(ctx), errCrowded) {
		err = errCrowded
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
	request := gate.Request{Application: app, Requester: Requester(app), Digest: r.tags.digest(id, generation)}
	if r.Images != nil {
		request.Reader = r.Images(ctx, app)
	}
	if request.Digest == "" && live != nil && !live.Tombstone && live.Generation == generation {
		request.Digest = live.ImageDigest
	}
	if id.Namespace != "" {
		var ns metav1.PartialObjectMetadata
		ns.SetGroupVersionKind(namespaceKind)
		if err := r.Client.Get(ctx, types.NamespacedName{Name: id.Namespace}, &ns); err != nil {
			return gate.Request{}, fmt.Errorf("get namespace of %s: %w", id, err)
		}
		request.Namespace = policies.Namespace{Name: id.Namespace, Labels: ns.Labels}
	}
	return request, nil
}

// brake asks whether a mass denial holds what a policy wants unloaded, and what
// lets it go; of what a policy does not want unloaded it says so.
func (r *Reconciler) brake(ctx context.Context, app application, s gate.Standing) (revision string, held bool, err error) {
	switch {
	case s.Unloads():
		return r.Keeper.Holds(ctx, app.Identity())
	case s.Runs() && s.Err == nil:
		r.Keeper.Spares(app.Identity())
	}
	return "", false, nil
}

// Weigh implements policy.Weigher: it judges all that runs by the policies now
// in force, without the network where it can.
func (r *Reconciler) Weigh(ctx context.Context) ([]v1alpha1.Identity, error) {
	var intents v1alpha1.BpfIntentList
	if err := r.Client.List(ctx, &intents); err != nil {
		return nil, fmt.Errorf("list intents: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var unloads []v1alpha1.Identity
	for i := range intents.Items {
		s, ok := r.open(&intents.Items[i])
		if !ok || s.payload.Tombstone {
			continue
		}
		app, err := r.application(ctx, r.Client, s.payload.Application)
		if err != nil || app == nil || string(app.GetUID()) != s.payload.UID {
			continue
		}
		request, err := r.request(ctx, app, s.payload)
		if err != nil {
			continue
		}
		standing := gate.Standing{Request: request, Live: s.payload}
		// One that hangs is not to take the time of the others.
		standing.Verdict, standing.Err = r.ask(ctx, request, slowAfter)
		standing.Held = r.Judge.Hold(ctx, standing)
		if standing.UnloadsAnew() {
			unloads = append(unloads, s.payload.Application)
		}
	}
	return unloads, nil
}

func (r *Reconciler) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}
