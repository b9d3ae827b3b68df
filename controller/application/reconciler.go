// Package application reconciles applications: from the definition to a sealed intent and a
// status.
//
// It is one reconciler for both scopes. A reconcile gathers a state once, takes it through a
// list of steps, and patches the status once. What to decide is in packages gate,
// lifecycle and rollout, what to count in package status.
//
// Size: the steps share one state, and undo, rollout and lost intents depend on each other.
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
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// Reconciler keeps intents and statuses up to date with the applications of a cluster.
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
	Images func(context.Context, v1alpha1.Application) *access.Reader
	// Intents are what agents act on.
	Intents *intents.Store
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
	// EndWithin is how long a revocation waits for the registry of what it ends; zero
	// means half a second.
	EndWithin time.Duration
	// ReadyWithin is how long the status of a new version waits for the nodes to
	// answer: where they load it within that, Ready is written once, and no
	// Progressing before it. Zero writes at once.
	ReadyWithin time.Duration

	remembered

	limiter     limiter
	revocations revocations
}

// remembered is what is known of applications in a term as the leader.
type remembered struct {
	tags        tags
	progress    progress
	gathering   reportDebounce
	patched     patched
	generations generations
	requests    requests
	changeNames changeNames
}

// reset forgets all: another replica may have decided otherwise since.
func (m *remembered) reset() {
	m.tags.reset()
	m.progress.reset()
	m.gathering.reset()
	m.patched.reset()
	m.generations.reset()
	m.requests.reset()
	m.changeNames.reset()
}

// forget forgets an application that is gone.
func (m *remembered) forget(id v1alpha1.Identity) {
	m.tags.forget(id)
	m.progress.forget(id)
	m.patched.forget(id)
	m.generations.forget(id)
	m.requests.forget(id)
	m.changeNames.forget(id)
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

// errNoSuchApplication says that no application can have an identity.
var errNoSuchApplication = errors.New("nothing can bear that name")

// Reconcile brings one application up to date, also if it is gone. If the cache was out of
// date, it reconciles again in a moment. A replica that does not lead does nothing;
// when it leads, it reconciles all.
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
		return ctrl.Result{RequeueAfter: reportSpacing}, nil
	}
	return again, err
}

// outdated reports whether what was looked at was out of date.
func outdated(err error) bool {
	return errors.Is(err, intents.ErrBehind) || errors.Is(err, errOverruled) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

func (r *Reconciler) reconcile(ctx context.Context, id v1alpha1.Identity) (ctrl.Result, error) {
	if err := r.Keeper.Wait(ctx); err != nil {
		return ctrl.Result{}, err
	}
	st, err := r.gather(ctx, id)
	if err != nil {
		return ctrl.Result{}, err
	}
	if st.app != nil {
		ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("generation", st.app.GetGeneration()))
	}
	next, evaluated, err := r.reconcileApplication(ctx, id, st)
	errs := []error{err}
	for _, f := range st.former {
		after, err := r.retireOrWait(ctx, st, f, evaluated)
		next, errs = earlier(next, after), append(errs, err)
	}
	return ctrl.Result{RequeueAfter: next}, errors.Join(errs...)
}

// state is what one reconcile knows of the applications of one name. gather fills in the
// first part, once; each step of reconcileApplication adds to the second.
type state struct {
	// app has the name now; nil if none does.
	app application
	// postponed is for how long a newer request for a reconcile waits; zero if none does.
	postponed time.Duration
	// sealed is its intent, was the intent when the reconcile began, former are those of applications that had the name before.
	sealed intents.Intent
	was    *intent.Payload
	former []former
	// nodes are the cluster's, read at the time gathered. reports is what they reported on
	// the name when the reconcile began, by UID.
	nodes    nodereports.Snapshot
	gathered time.Time
	reports  map[string]nodereports.Report

	// observed has the verdicts on the definition and on what runs.
	observed lifecycle.Observation
	// blocked is why no version is rolled out for now; the zero value if nothing keeps it.
	blocked v1alpha1.RolloutStatus
	// why is why what runs is kept.
	why string
	// progress is that of the rollout.
	progress rollout.Progress
	// delay is how long the status waits to be written; zero if it does not.
	delay time.Duration
	// silent is for how long nodes are waited for that say nothing of what is to be unloaded; zero if none is.
	silent time.Duration
}

// former is the intent of an application that had the name before.
type former struct {
	intents.Intent

	// unload is why it is to be unloaded; empty if it is kept, or is a tombstone.
	unload string
}

// gather reads all that is known of a name.
func (r *Reconciler) gather(ctx context.Context, id v1alpha1.Identity) (st *state, err error) {
	st = &state{}
	if st.app, err = applicationOf(ctx, r.Client, id); err != nil {
		return nil, err
	}
	if st.app != nil {
		st.app, st.postponed = r.requests.answer(r.patched.newest(st.app), r.now())
	}
	sealed, err := r.Intents.Of(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := r.gatherNodes(ctx, st); err != nil {
		return nil, err
	}
	st.reports = st.nodes.Of(id, uidsOf(st.app, sealed), r.now().Add(maxAhead).UnixMilli())
	for _, s := range sealed {
		s.Report = st.reports[s.Payload.UID]
		if st.app != nil && s.Payload.UID == string(st.app.GetUID()) {
			st.sealed, st.was = s, s.Payload
			continue
		}
		why, err := r.unloadReason(ctx, s)
		if err != nil {
			return nil, err
		}
		st.former = append(st.former, former{Intent: s, unload: why})
	}
	if st.app != nil {
		st.sealed.Report = st.reports[string(st.app.GetUID())]
	}
	return st, nil
}

// fresh is how old a look at the nodes may be for a step of a rollout, and for the end of a
// tombstone. It is long enough for evaluations from memory.
const fresh = time.Second

// gatherNodes reads nodes and their reports, unless they were read just now. A reconcile
// reads them once, and again if an evaluation took long.
func (r *Reconciler) gatherNodes(ctx context.Context, st *state) (err error) {
	now := r.now()
	if !st.gathered.IsZero() && now.Sub(st.gathered) <= fresh {
		return nil
	}
	st.gathered = now
	st.nodes, err = nodereports.Gather(ctx, r.Client, r.Agents)
	return err
}

// runsName reports whether nodes run an application of the name: they report one, or a
// former one has an intent.
func (st *state) runsName() bool {
	for _, report := range st.reports {
		if report.Runs {
			return true
		}
	}
	return slices.ContainsFunc(st.former, func(f former) bool { return !f.Payload.Tombstone })
}

// lost reports whether nodes run the application by an intent that is gone, or whose seal
// does not hold.
func (st *state) lost() bool {
	return st.sealed.Payload == nil && len(st.former) == 0 && st.runsName()
}

// reconcileApplication takes the application of a name through all steps. evaluated is
// false if it could not be evaluated, or has to wait for that. It returns when to come
// back.
func (r *Reconciler) reconcileApplication(ctx context.Context, id v1alpha1.Identity, st *state) (next time.Duration, evaluated bool, err error) {
	switch {
	case st.app == nil:
		r.forget(id)
		r.Metrics.forget(id)
		return 0, true, nil
	case st.sealed.Payload == nil && r.limiter.full(id.Namespace):
		return retryAfter(), false, nil
	}
	for _, step := range []func(context.Context, *state) error{
		r.reportUnload,   // the status, if a revocation ended what it speaks of
		r.withdrawGrants, // which waits for nothing
		r.evaluate,       // the definition, and what runs
		r.applyRequests,  // an undo; or what blocks the rollout
		r.settle,         // keep, seal or unload
		func(ctx context.Context, st *state) error { return withdrawLast(ctx, r, st) }, // also behind unload protection
		r.advanceRollout,
		r.report, // the status, patched once
		r.describe,
	} {
		if err := step(ctx, st); err != nil {
			return 0, false, err
		}
	}
	_, wait := nodesAreAhead(st.sealed, r.now())
	if st.blocked.State != "" {
		wait = earlier(wait, soon)
	}
	next = earlier(earlier(st.requeueAfter(cmp.Or(r.Interval, 10*time.Minute), r.now()), wait), earlier(st.progress.After, st.delay))
	return earlier(earlier(next, st.postponed), st.silent), true, r.replaceLostIntent(ctx, st)
}

// describe writes down what the verdict rests on.
func (r *Reconciler) describe(ctx context.Context, st *state) error {
	if st.observed.Err != nil {
		return st.observed.Err
	}
	if r.Describe == nil {
		return nil
	}
	if err := r.Describe(ctx, st.observed.Verdict); err != nil {
		// The registry has it still.
		ctrl.LoggerFrom(ctx).Error(err, "write down what a verdict rests on", "application", st.app.Identity().String())
	}
	return nil
}

// retireOrWait retires the intent of a former application. It waits while the application
// that has the name now is not evaluated.
func (r *Reconciler) retireOrWait(ctx context.Context, st *state, f former, evaluated bool) (time.Duration, error) {
	if !evaluated {
		if waits, err := r.waitsForSuccessor(ctx, st, &f.Intent); waits || err != nil {
			return 0, err
		}
	}
	return r.retireIntent(ctx, st, f)
}

// uidsOf are the UIDs of an application, if there is one, and of intents of its name. They
// are true if an intent was sealed: the status of an application still says so of one
// that was lost.
func uidsOf(app application, sealed []intents.Intent) map[string]bool {
	all := map[string]bool{}
	if app != nil {
		all[string(app.GetUID())] = app.Report().Serial > 0
	}
	for _, s := range sealed {
		all[s.Payload.UID] = true
	}
	return all
}

// earlier is the earlier of two times to come back; zero means never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// applicationOf is the object of an identity; nil where it is not there, or on
// its way out.
func applicationOf(ctx context.Context, from client.Reader, id v1alpha1.Identity) (application, error) {
	app := newApplication(id)
	if app == nil {
		return nil, reconcile.TerminalError(fmt.Errorf("get %s %s: %w", id.Kind, id, errNoSuchApplication))
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

// errOverruled says that the policies changed while an application was evaluated.
var errOverruled = errors.New("signers or policies changed meanwhile; evaluating again")

// settle decides what becomes of the sealed intent, and writes it. An allowed version that
// cannot be sealed replaces nothing: what runs is then evaluated by itself.
func (r *Reconciler) settle(ctx context.Context, st *state) error {
	before, o := st.sealed, &st.observed
	err := r.act(ctx, st, st.blocked.Message)
	if failed := err; failed != nil && o.Runs() && !o.Frozen && !outdated(failed) {
		o.Frozen, st.sealed = true, before
		r.verdicts().running(ctx, o)
		err = errors.Join(failed, r.act(ctx, st, cmp.Or(st.blocked.Message, failed.Error())))
	}
	if errors.Is(err, intents.ErrUnsealable) {
		o.Err, err = err, nil
	}
	return err
}

// act is settle for one decision; blocked is why no other version is sealed, if there is a
// reason.
func (r *Reconciler) act(ctx context.Context, st *state, blocked string) error {
	st.why = ""
	others, err := r.evaluateOtherVersions(ctx, st.observed)
	if err != nil {
		return err
	}
	revision, protected, err := r.applyUnloadProtection(ctx, st, &others)
	if err != nil {
		return err
	}
	action, why := st.observed.Decide(r.Keeper.Revoked(), protected)
	reason, live := why, st.sealed.Payload
	others.own = action == lifecycle.Unload
	switch ahead, _ := nodesAreAhead(st.sealed, r.now()); {
	case protected && st.observed.Unloads() && action == lifecycle.Keep:
		why = fmt.Sprintf("unload protection holds it; to let it go, annotate any ClusterBpfPolicy or BpfSigner with %s=%s", policy.AnnotationConfirm, revision)
	case ahead && live.Tombstone && (action == lifecycle.Keep || blocked != ""):
		// Nodes have seen a newer intent, and do not unload by an older tombstone.
		action, why, reason = lifecycle.Unload, cmp.Or(why, blocked), lifecycle.UnloadedAgain(live.Reason)
	case blocked != "" && action == lifecycle.Seal && (live == nil || !st.observed.Verdict.SameVersion(*live)):
		action, why = lifecycle.Keep, blocked
	case ahead && blocked == "" && action == lifecycle.Keep && why == "":
		action = lifecycle.Seal
	}
	st.why = why
	if err := r.write(ctx, st, action, reason); err != nil {
		return err
	}
	st.sealed, err = others.withdraw(ctx, r.Intents, st.nodes, st.sealed)
	return err
}

// soon is when to look again at what a registry, or somebody else, may yet fix.
const soon = 30 * time.Second

// requeueAfter is when a verdict is to be looked at again without an event: soon where
// a signature may yet be pushed, a policy could not be evaluated, or the first signature
// that counts was enough to seal it a moment ago; else by and by, so that a thousand
// applications that a restart had evaluated at once are not all due together.
func (st *state) requeueAfter(interval time.Duration, now time.Time) time.Duration {
	verdict := st.observed.Verdict
	lacks := !verdict.Allowed() && (len(verdict.Evidence().Signatures) == 0 || verdict.Decision().EvidenceDenies)
	isNew := verdict.Evidence().Partial && st.sealed.Payload != nil && now.Sub(time.UnixMilli(st.sealed.Payload.Serial)) < soon
	switch {
	case lacks || st.observed.Undecided():
		return apiwait.Jitter(min(interval, soon)*9/10, 0.1)
	case isNew:
		// Before that, the gate is content with what it has.
		return apiwait.Jitter(min(interval, soon), 0.1)
	}
	return apiwait.Jitter(interval, 0.1)
}

func (r *Reconciler) now() time.Time { return clock.OrSystem(r.Now)() }

// write seals what an action asks for and writes it, in one request.
func (r *Reconciler) write(ctx context.Context, st *state, action lifecycle.Action, why string) (err error) {
	switch action {
	case lifecycle.Keep:
		return nil
	case lifecycle.Unload:
		if rolledBack, err := r.rollBack(ctx, st); rolledBack || err != nil {
			return err
		}
		st.sealed, err = r.Intents.Unload(ctx, st.sealed, why)
		return err
	}
	crd, err := r.Intents.CRDToSeal(ctx, st.app.Identity().Kind)
	if err != nil {
		return err
	}
	stamp, err := r.stamp(ctx, st)
	if err != nil {
		return err
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("requester", st.observed.Request.Requester.Username))
	st.sealed, err = r.Intents.Seal(ctx, st.sealed, st.observed.Verdict, stamp, crd)
	return err
}
