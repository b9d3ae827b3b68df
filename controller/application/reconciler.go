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

	"github.com/fluxcd/pkg/runtime/conditions"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// Reconciler holds intents and statuses to the applications of a cluster.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads past the cache: what is about to be unloaded because it is gone
	// is looked for once more.
	Live      client.Reader
	Evaluator *gate.Evaluator
	Keeper    *policy.Keeper
	// Images reads an application's image with the pull Secrets it names; nil
	// means as the Evaluator does.
	Images func(context.Context, v1alpha1.Application) *registry.Reader
	// Keys seal, and open what this controller, or one before it, sealed.
	Keys func() sealing.Keys
	// Events tells people; Metrics counts.
	Events  events.EventRecorder
	Metrics *Metrics
	// Describe writes down for people what a verdict rests on; nil means not to.
	Describe func(context.Context, gate.Verdict) error
	// Agents tells which nodes an agent runs on, and of others since when none does
	// where that is known; nil means that one runs on every node.
	Agents func(ctx context.Context) (runs map[string]bool, gone map[string]time.Time, err error)
	// Leader decides whether this replica writes; nil means that it does.
	Leader *leader.Elector
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Interval is how often an application that is well is evaluated again; zero
	// means ten minutes. EvaluationTimeout bounds one evaluation; zero means 20 s.
	Interval, EvaluationTimeout time.Duration
	// ReadyWithin is how long the status of a new version waits for the nodes to
	// answer: where they load it within that, Ready is written once, and no
	// Progressing before it. Zero writes at once.
	ReadyWithin time.Duration

	tags      tags
	progress  progress
	gathering gathering
	patched   patched
	limiter   limiter
	crds      singleflight.Group

	generations generations
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
// looks again in a moment. A replica that does not lead does nothing: when it comes to
// lead, it looks at all there is.
func (r *Reconciler) Reconcile(ctx context.Context, id v1alpha1.Identity) (again ctrl.Result, err error) {
	led, err := r.Leader.Do(ctx, func(ctx context.Context) error {
		again, err = r.reconcile(ctx, id)
		return err
	})
	if !led {
		return ctrl.Result{}, nil
	}
	if outdated(err) {
		ctrl.LoggerFrom(ctx).V(1).Info("looking again", "application", id.String(), "reason", err.Error())
		return ctrl.Result{RequeueAfter: settle}, nil
	}
	return again, err
}

// outdated reports whether what was looked at was out of date.
func outdated(err error) bool {
	return errors.Is(err, errBehind) || errors.Is(err, errOverruled) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

func (r *Reconciler) reconcile(ctx context.Context, id v1alpha1.Identity) (ctrl.Result, error) {
	if err := r.Keeper.Wait(ctx); err != nil {
		return ctrl.Result{}, err
	}
	f, err := r.find(ctx, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	next, evaluated, err := r.reconcileApplication(ctx, id, f)
	errs := []error{err}
	for _, s := range f.others {
		after, err := r.retireOrWait(ctx, f.app, s, evaluated)
		next, errs = earlier(next, after), append(errs, err)
	}
	return ctrl.Result{RequeueAfter: next}, errors.Join(errs...)
}

// found is what is known of a name before any of it is evaluated.
type found struct {
	// app bears the name; nil where nothing does.
	app application
	// mine is what is sealed of it, others of what bore the name before it.
	mine   sealed
	others []sealed
	// reports is what nodes say, by UID.
	reports map[string]nodeReport
}

// find gathers what is known of a name.
func (r *Reconciler) find(ctx context.Context, id v1alpha1.Identity) (f found, err error) {
	if f.app, err = r.application(ctx, r.Client, id); err != nil {
		return f, err
	}
	if f.app != nil {
		f.app = r.patched.newest(f.app)
	}
	held, err := r.sealed(ctx, id)
	if err != nil {
		return f, err
	}
	if f.reports, err = r.nodeReports(ctx, id, uidsOf(f.app, held)); err != nil {
		return f, err
	}
	for _, s := range held {
		s.report = f.reports[s.payload.UID]
		if f.app != nil && s.payload.UID == string(f.app.GetUID()) {
			f.mine = s
			continue
		}
		if s.gone, err = r.unloadReason(ctx, s); err != nil {
			return f, err
		}
		f.others = append(f.others, s)
	}
	if f.app != nil {
		f.mine.report, f.mine.runs = f.reports[string(f.app.GetUID())], runs(f.reports, f.others)
		f.mine.lost = f.mine.payload == nil && len(f.others) == 0 && f.mine.runs
	}
	return f, nil
}

// reconcileApplication brings the application of a name up to date. evaluated is false where it could
// not be evaluated, or has to wait for that.
func (r *Reconciler) reconcileApplication(ctx context.Context, id v1alpha1.Identity, f found) (next time.Duration, evaluated bool, err error) {
	switch {
	case f.app == nil:
		r.tags.forget(id)
		r.progress.forget(id)
		r.patched.forget(id)
		r.generations.forget(id)
		r.Metrics.forget(id)
		return 0, true, nil
	case f.mine.payload == nil && r.limiter.full(id.Namespace):
		return retryAfter(), false, nil
	}
	if next, err = r.advance(ctx, f.app, f.mine); err != nil {
		return next, false, err
	}
	return next, true, r.replaceLostIntent(ctx, f.app, f.others, f.reports)
}

// retireOrWait has an intent retired whose application is gone, and lets it wait where the
// one that took its place was not evaluated.
func (r *Reconciler) retireOrWait(ctx context.Context, now application, s sealed, evaluated bool) (time.Duration, error) {
	if !evaluated {
		if waits, err := r.waitsForSuccessor(ctx, now, s); waits || err != nil {
			return 0, err
		}
	}
	return r.retireIntent(ctx, s)
}

// uidsOf are those of an application, where it is there, and of what is sealed of
// its name: true where one was sealed, as its status still says of one that was lost.
func uidsOf(app application, held []sealed) map[string]bool {
	all := map[string]bool{}
	if app != nil {
		all[string(app.GetUID())] = app.Report().Serial > 0
	}
	for _, s := range held {
		all[s.payload.UID] = true
	}
	return all
}

// runs reports whether nodes run anything by a name: by what they say, or by
// intents of applications that bore it before.
func runs(said map[string]nodeReport, others []sealed) bool {
	for _, w := range said {
		if w.runs {
			return true
		}
	}
	return slices.ContainsFunc(others, func(s sealed) bool { return !s.payload.Tombstone })
}

// earlier is the earlier of two times to come back; zero means never.
func earlier(a, b time.Duration) time.Duration {
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

// errUnsealable says that a verdict cannot be sealed: trying again does not help.
var errUnsealable = errors.New("it is allowed and cannot be sealed")

// errOverruled says that the policies changed while an application was evaluated.
var errOverruled = errors.New("signers or policies changed meanwhile; evaluating again")

// advance evaluates one application, seals what follows, and reports. It returns
// when to come back.
func (r *Reconciler) advance(ctx context.Context, app application, mine sealed) (time.Duration, error) {
	standing, err := r.evaluate(ctx, app, mine.payload)
	if err != nil {
		return 0, err
	}
	mine, hold, err := r.applyRequests(ctx, app, mine, &standing)
	if err != nil {
		return 0, err
	}
	mine, why, err := r.settle(ctx, app, mine, &standing, hold.Message)
	if err != nil {
		return 0, err
	}
	mine, progress, err := r.advanceRollout(ctx, app, mine, standing, hold)
	if err != nil {
		return 0, err
	}
	later, err := r.report(ctx, app, mine, standing, progress, why)
	if err != nil {
		return 0, err
	}
	if standing.Err != nil {
		return 0, standing.Err
	}
	if r.Describe != nil {
		if err := r.Describe(ctx, standing.Verdict); err != nil {
			// It is looked up again.
			ctrl.LoggerFrom(ctx).Error(err, "write down what a verdict rests on", "application", app.Identity().String())
		}
	}
	_, wait := r.nodesAreAhead(mine)
	if hold.State != "" {
		wait = earlier(wait, soon)
	}
	return earlier(earlier(r.requeueAfter(standing), wait), earlier(progress.After, later)), nil
}

// settle decides what is to become of what is sealed, and writes it; why is what keeps
// it as it is. An allowed version that cannot be sealed takes the place of nothing: what
// runs is then evaluated by itself.
func (r *Reconciler) settle(ctx context.Context, app application, mine sealed, s *lifecycle.Observation, hold string) (now sealed, why string, err error) {
	now, why, err = r.act(ctx, app, mine, s, hold)
	if failed := err; failed != nil && s.Runs() && !s.Frozen && !outdated(failed) {
		s.Frozen = true
		r.hold(ctx, s)
		now, why, err = r.act(ctx, app, mine, s, cmp.Or(hold, failed.Error()))
		err = errors.Join(failed, err)
	}
	if errors.Is(err, errUnsealable) {
		s.Err, err = err, nil
	}
	return now, why, err
}

// act is settle for one decision; hold is what keeps another version from being sealed.
func (r *Reconciler) act(ctx context.Context, app application, mine sealed, s *lifecycle.Observation, hold string) (now sealed, why string, err error) {
	others, err := r.evaluateOtherVersions(ctx, *s)
	if err != nil {
		return mine, "", err
	}
	revision, protected, err := r.applyUnloadProtection(ctx, app, *s, &others)
	if err != nil {
		return mine, "", err
	}
	move, why := s.Decide(r.Keeper.Revoked(), protected)
	reason := why
	others.own = move == lifecycle.Unload
	switch overtaken, _ := r.nodesAreAhead(mine); {
	case protected && s.Unloads() && move == lifecycle.Keep:
		why = fmt.Sprintf("unload protection holds it; to let it go, annotate any ClusterBpfPolicy or BpfSigner with %s=%s", policy.AnnotationConfirm, revision)
	case overtaken && mine.payload.Tombstone && (move == lifecycle.Keep || hold != ""):
		// Nodes run on what they refuse to unload by an older tombstone.
		move, why, reason = lifecycle.Unload, cmp.Or(why, hold), lifecycle.UnloadedAgain(mine.payload.Reason)
	case hold != "" && move == lifecycle.Seal && (mine.payload == nil || !s.Verdict.SameVersion(*mine.payload)):
		// What people want undone, for one, is not sealed meanwhile.
		move, why = lifecycle.Keep, hold
	case overtaken && hold == "" && move == lifecycle.Keep && why == "":
		move = lifecycle.Seal
	}
	mine, err = r.write(ctx, app, mine, *s, move, reason)
	if err == nil {
		mine, err = r.withdrawVersions(ctx, mine, others)
	}
	return mine, why, err
}

// soon is when to look again at what a registry, or somebody else, may yet fix.
const soon = 30 * time.Second

// requeueAfter is when a verdict is to be looked at again without an event: soon where
// a signature may yet be pushed or a policy could not be evaluated, else by and by, so
// that a thousand applications that a restart had evaluated at once are not all due
// together.
func (r *Reconciler) requeueAfter(s lifecycle.Observation) time.Duration {
	interval := cmp.Or(r.Interval, 10*time.Minute)
	verdict := s.Verdict
	lacks := !verdict.Allowed() && (len(verdict.Evidence().Signatures) == 0 || verdict.Decision().EvidenceDenies)
	if lacks || s.Undecided() {
		return apiwait.Jitter(min(interval, soon)*9/10, 0.1)
	}
	return apiwait.Jitter(interval, 0.1)
}

// evaluationTimeout bounds one evaluation where nothing else is asked for.
const evaluationTimeout = 20 * time.Second

// evaluate asks the gate about a definition, and about what runs.
func (r *Reconciler) evaluate(ctx context.Context, app application, live *intent.Payload) (lifecycle.Observation, error) {
	timeout := cmp.Or(r.EvaluationTimeout, evaluationTimeout)
	weighed := r.Keeper.Weighed(app.GetNamespace())
	s := lifecycle.Observation{Live: live}
	var err error
	if s.Request, err = r.request(ctx, app, live); err != nil {
		return s, err
	}
	s.Verdict, s.Err = r.evaluateDefinition(ctx, s.Request, timeout)
	if s.Err == nil {
		r.tags.keep(app, s.Verdict.Image().Digest, r.now())
		r.lookUp(ctx, app, s)
	}
	// A definition that took all of its time leaves what runs its own.
	r.hold(ctx, &s)
	if said := s.Verdict.Revision(); said != "" && said != weighed || r.Keeper.Weighed(app.GetNamespace()) != weighed || r.rulesChanged(app.GetNamespace()) {
		return s, errOverruled
	}
	return s, nil
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
	request := gate.Request{Application: app, Requester: Requester(app), Digest: r.tags.digest(id, generation)}
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

// applyUnloadProtection asks whether unload protection holds what a policy wants unloaded, and what
// lets it go; of what a policy does not want unloaded it says so. besides are
// the versions that stand beside what is live: those that are held are taken from the
// denied.
func (r *Reconciler) applyUnloadProtection(ctx context.Context, app application, s lifecycle.Observation, besides *otherVersions) (revision string, held bool, err error) {
	id := app.Identity()
	if !s.Unloads() && len(besides.denied) == 0 {
		if s.Runs() && s.Err == nil && !s.Undecided() && s.Verdict.Unevaluated() == nil && !besides.unknown {
			r.Keeper.Spares(id)
		}
		return "", false, nil
	}
	denied := besides.denied
	besides.denied = nil
	for _, v := range denied {
		_, held, err := r.Keeper.Holds(ctx, id, v.byCluster)
		if err != nil {
			return "", false, err
		}
		if !held {
			besides.denied = append(besides.denied, v)
		}
	}
	if !s.Unloads() {
		return "", false, nil
	}
	return r.Keeper.Holds(ctx, id, s.UnloadsByCluster())
}

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

// weighTimeout bounds the weighing of all that runs: nothing is sealed, unloaded or
// rolled on meanwhile. What runs in namespaces whose own policies changed has slowAfter:
// a revocation may wait for that.
const weighTimeout = 10 * time.Second

// weighIntent adds to an effect what the policies now active do to what one intent has
// nodes run, unless the time is over.
func (r *Reconciler) weighIntent(ctx context.Context, o *v1alpha1.BpfIntent, effect *policy.Effect) {
	if ctx.Err() != nil {
		return
	}
	s, ok := r.openIntent(o)
	if !ok || s.payload.Tombstone {
		return
	}
	id := s.payload.Application
	app, err := r.application(ctx, r.Client, id)
	if err != nil || app == nil || string(app.GetUID()) != s.payload.UID {
		return
	}
	request, err := r.request(ctx, app, s.payload)
	if err != nil {
		return
	}
	denies, unloads, byCluster := r.weigh(ctx, request, *s.payload)
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
func (r *Reconciler) weigh(ctx context.Context, request gate.Request, live intent.Payload) (denies, unloads, byCluster bool) {
	standing := lifecycle.Observation{Request: request, Live: &live}
	standing.Verdict, standing.Err = r.evaluateDefinition(ctx, request, slowAfter)
	// Whether another version was undone or is held back is not asked here.
	standing.Frozen = !standing.Verdict.SameVersion(live)
	ctx, cancel := context.WithTimeout(ctx, slowAfter)
	defer cancel()
	standing.Running = r.Evaluator.WeighRunning(ctx, standing.Request, standing.RunningToEvaluate())
	unloads, byCluster = standing.Unloads(), standing.UnloadsByCluster()
	for _, v := range live.Beside() {
		if unloads {
			break
		}
		beside := lifecycle.ObserveVersion(request, *v)
		beside.Running = r.Evaluator.WeighRunning(ctx, beside.Request, beside.RunningToEvaluate())
		verdict := beside.VersionVerdict(r.Keeper.Revoked())
		unloads, byCluster = verdict.Denied, verdict.ByCluster
	}
	return standing.Err == nil && !standing.Verdict.Allowed(), unloads, byCluster
}

func (r *Reconciler) now() time.Time { return clock.OrSystem(r.Now)() }
