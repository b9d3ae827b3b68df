package application

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/nodereports"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/signing"
)

// The registry of a version that a revocation may end has endWithin to show the signature of
// another signer. After that the signatures that were collected before decide, within
// localWithin, if they are all there were. If not, the reconcile of the application decides, and
// has longer. A definition that would replace the version has replaceWithin to do so.
//
// A registry that took so long is not waited for again for hungFor in that namespace, and no
// registry of a namespace where maxHung did.
const (
	endWithin     = 500 * time.Millisecond
	localWithin   = 2 * time.Second
	replaceWithin = time.Second
	hungFor       = 30 * time.Second
	maxHung       = 4
)

// ender ends what revocations end, beside the queue of applications: it waits for no
// weighing, for no definition, and for none whose registries hang.
type ender struct{ *Reconciler }

// revocations is what an ender knows.
type revocations struct {
	// raised asks for every intent.
	raised signal
	// turns are those of the intents that are looked at.
	turns turns

	mu sync.Mutex
	// hung is when registries took too long last, by namespace.
	hung map[string]map[string]time.Time
	// nodes are those of the cluster, as they were gathered last.
	nodes    nodereports.Snapshot
	gathered time.Time
}

// hangs reports whether a registry took too long a moment ago, or too many of the namespace did.
func (v *revocations) hangs(namespace, registry string, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	hung := v.hung[namespace]
	maps.DeleteFunc(hung, func(_ string, since time.Time) bool { return now.Sub(since) >= hungFor })
	if len(hung) == 0 {
		delete(v.hung, namespace)
	}
	_, known := hung[registry]
	return known || len(hung) >= maxHung
}

func (v *revocations) noteHung(namespace, registry string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.hung == nil {
		v.hung = map[string]map[string]time.Time{}
	}
	if v.hung[namespace] == nil {
		v.hung[namespace] = map[string]time.Time{}
	}
	v.hung[namespace][registry] = now
}

// snapshot is what nodes report, no older than fresh.
func (e ender) snapshot(ctx context.Context) (nodereports.Snapshot, error) {
	v := &e.revocations
	v.mu.Lock()
	defer v.mu.Unlock()
	now := e.now()
	if !v.gathered.IsZero() && now.Sub(v.gathered) <= fresh {
		return v.nodes, nil
	}
	nodes, err := nodereports.Gather(ctx, e.Client, e.Agents)
	if err == nil {
		v.nodes, v.gathered = nodes, now
	}
	return nodes, err
}

// Revoke implements policy.Weigher.
func (r *Reconciler) Revoke() { r.revocations.raised.raise() }

// register has a manager end what revocations end, on the leader.
func (e ender) register(mgr ctrl.Manager) error {
	e.revocations.raised = make(signal, 1)
	e.Leader.Elected(e.Revoke)
	intents := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []string { return []string{o.GetName()} })
	return builder.TypedControllerManagedBy[string](mgr).Named("revocation").
		WithOptions(controller.TypedOptions[string]{MaxConcurrentReconciles: placesOfNamespaces + placesOfCluster, RateLimiter: retries[string]()}).
		Watches(&v1alpha1.BpfIntent{}, intents).
		WatchesRawSource(e.all()).
		Complete(e)
}

// all asks for every intent when that is raised, and for what waited for its turn.
func (e ender) all() source.TypedFunc[string] {
	return func(ctx context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
		e.revocations.turns.again = q.Add
		go func() {
			for wait(ctx, e.revocations.raised) {
				e.enqueueIntents(ctx, q)
			}
		}()
		return nil
	}
}

// enqueueIntents asks for every intent.
func (e ender) enqueueIntents(ctx context.Context, q workqueue.TypedRateLimitingInterface[string]) {
	var list v1alpha1.BpfIntentList
	if err := e.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list intents that a revocation may end")
		time.AfterFunc(reportSpacing, e.Revoke)
	}
	for i := range list.Items {
		q.Add(list.Items[i].Name)
	}
}

// Reconcile ends the versions of an intent that a revocation ends. It leaves to the Reconciler
// what cannot be told so fast, and all that needs no revocation.
func (e ender) Reconcile(ctx context.Context, intent string) (again ctrl.Result, err error) {
	defer e.revocations.turns.giveBack(intent)
	led, err := e.Leader.Do(ctx, func(ctx context.Context) error {
		again, err = e.end(ctx, intent)
		return err
	})
	switch {
	case !led:
		return ctrl.Result{}, nil
	case outdated(err):
		return ctrl.Result{RequeueAfter: lookAgain}, nil
	}
	return again, err
}

// lookAgain is when to look again at what changed meanwhile, or is about to be replaced.
const lookAgain = 50 * time.Millisecond

func (e ender) end(ctx context.Context, name string) (again ctrl.Result, err error) {
	if err := e.Keeper.WaitUnweighed(ctx); err != nil {
		return again, err
	}
	var o v1alpha1.BpfIntent
	if err := e.Client.Get(ctx, types.NamespacedName{Name: name}, &o); err != nil {
		return again, client.IgnoreNotFound(err)
	}
	s, ok := e.Intents.Open(&o)
	revoked := e.Keeper.Revoked()
	lost := func(v intent.Payload) bool { return lifecycle.LostASigner(&v, revoked) }
	if !ok || s.Payload.Tombstone || !slices.ContainsFunc(s.Payload.Versions(), lost) {
		return again, nil
	}
	if !e.revocations.turns.take(turn{s.Payload.Application.Namespace, name}) {
		return again, nil
	}
	nodes, err := e.snapshot(ctx)
	if err != nil {
		return again, err
	}
	uid := s.Payload.UID
	s.Report = nodes.Of(s.Payload.Application, map[string]bool{uid: true}, e.now().Add(maxAhead).UnixMilli())[uid]
	l, err := e.look(ctx, s.Payload, revoked)
	if err != nil {
		return again, err
	}
	defer l.stop()
	kept, err := e.dropDeniedVersions(ctx, nodes, s, l.overruled, l.keeps)
	if l.replaced {
		again.RequeueAfter = lookAgain
	}
	if err != nil || kept {
		return again, err
	}
	s, err = e.Intents.Unload(ctx, s, lifecycle.RevocationReason(s.Payload, revoked))
	if err != nil || l.app == nil {
		return again, err
	}
	return again, e.reportUnload(ctx, &state{app: e.patched.newest(l.app), sealed: s, nodes: nodes})
}

// hurried is one look at whether a revocation ends the versions of an intent.
type hurried struct {
	*Reconciler
	live    *intent.Payload
	revoked signing.Revocations
	// app is the application; nil if it is gone.
	app application
	// request is that of the definition, and revision what it is evaluated by.
	request  gate.Request
	revision string
	// ctx is the caller's; asking is the context of what asks registries, which stop ends, or
	// within once it is over.
	ctx, asking context.Context
	within      time.Duration
	stop        func()
	// replacement says whether the definition replaces what runs, once that is known.
	replacement <-chan bool
	// replaced says that what runs is kept for a moment, since it does.
	replaced bool
}

// look begins to look at what an intent has run.
func (e ender) look(ctx context.Context, live *intent.Payload, revoked signing.Revocations) (*hurried, error) {
	id := live.Application
	app, err := applicationOf(ctx, e.Client, id)
	if err != nil {
		return nil, err
	}
	asking, stop := context.WithCancel(ctx)
	within := cmp.Or(e.EndWithin, endWithin)
	timer := time.AfterFunc(within, stop)
	l := &hurried{Reconciler: e.Reconciler, within: within, live: live, revoked: revoked, revision: e.Evaluator.RevisionIn(id.Namespace), ctx: ctx, asking: asking,
		stop: func() { timer.Stop(); stop() }}
	if app != nil && string(app.GetUID()) == live.UID {
		l.app = app
	}
	if app == nil {
		l.request.Namespace, err = namespaceOf(ctx, e.Client, id)
	} else {
		// Pull Secrets are read here.
		l.request, err = e.request(asking, app, live)
	}
	if err != nil {
		l.stop()
		return nil, err
	}
	if l.app != nil && !app.Body().Suspend {
		l.replacement = l.evaluateReplacement()
	}
	return l, nil
}

// evaluateReplacement has the definition evaluated if it asks for something else than what
// runs.
func (l *hurried) evaluateReplacement() <-chan bool {
	generation, err := gate.Generation(l.request.Application)
	if err != nil || generation == l.live.Generation {
		return nil
	}
	ctx, replaces := l.asking, make(chan bool, 1)
	if !l.mayAsk(l.request.Application.Body().Bytecode.Image) {
		ctx = registry.CacheOnly(ctx)
	}
	go func() {
		verdict, err := l.Evaluator.Evaluate(ctx, l.request)
		replaces <- err == nil && verdict.Allowed() && !verdict.SameVersion(*l.live)
	}()
	return replaces
}

// mayAsk reports whether the registry of an image may be waited for.
func (l *hurried) mayAsk(reference string) bool {
	namespace := l.live.Application.Namespace
	return !l.limiter.full(namespace) && !l.revocations.hangs(namespace, image.RegistryOf(reference), l.now())
}

// overruled reports whether signers or policies changed meanwhile.
func (l *hurried) overruled(namespace string) bool {
	return l.Evaluator.RevisionIn(namespace) != l.revision
}

// keeps reports whether a version runs on, as far as that can be told in a hurry.
func (l *hurried) keeps(version *intent.Payload) bool {
	if !lifecycle.LostASigner(version, l.revoked) {
		return true
	}
	o := lifecycle.ObserveVersion(l.request, *version)
	if o.Running = l.weigh(o); !l.isKnown(o.Running, version) {
		return true
	}
	if o.VersionVerdict(l.revoked).Keeps {
		return true
	}
	if version == l.live && l.now().Sub(l.Keeper.RevokedAt()) < replaceWithin && l.replacement != nil {
		l.replaced = <-l.replacement
		l.replacement = nil
	}
	return version == l.live && l.replaced
}

// isKnown reports whether a verdict on a version is the last word: there is a decision, or every
// signer of it is revoked and only repositories of other signers were not read.
func (l *hurried) isKnown(v gate.RunningVerdict, version *intent.Payload) bool {
	return v.Evaluated || v.Elsewhere && lifecycle.LostAllSigners(version, l.revoked)
}

// weigh evaluates a version by what its registry answers in time, else by what was
// collected before.
func (l *hurried) weigh(o lifecycle.Observation) gate.RunningVerdict {
	if l.asking.Err() == nil && l.mayAsk(o.Live.Image) {
		asked := o.Request
		if revoked := l.Keeper.RevokedAt(); asked.Changed.Before(revoked) {
			asked.Changed = revoked
		}
		began := time.Now()
		verdict := l.Evaluator.WeighRunning(l.asking, asked, o.Live)
		isAnswered := verdict.Evaluated && !verdict.Stale || verdict.Elsewhere
		// What took the time before, such as pull Secrets, says nothing about the registry.
		if l.asking.Err() != nil && l.ctx.Err() == nil && !isAnswered && time.Since(began) >= l.within/2 {
			l.revocations.noteHung(l.live.Application.Namespace, image.RegistryOf(o.Live.Image), l.now())
		}
		if l.isKnown(verdict, o.Live) {
			return verdict
		}
	}
	ctx, cancel := context.WithTimeout(registry.CacheOnly(l.ctx), localWithin)
	defer cancel()
	o.Request.Passing = true
	live := *o.Live
	if lifecycle.LostAllSigners(&live, l.revoked) {
		// The manifests by which it was allowed say nothing more, also if they were not looked for.
		live.Evidence = nil
	}
	return l.Evaluator.WeighRunning(ctx, o.Request, &live)
}
