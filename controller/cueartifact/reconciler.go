package cueartifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
	"github.com/skep-dev/skep/image/access"
)

// Reconciler publishes what CueArtifacts render to.
type Reconciler struct {
	// Client reads from the cache and writes. Needed.
	Client client.Client
	// Flux reads sources and ExternalArtifacts from the cache, not decoded; Register sets it.
	Flux client.Reader
	// Live reads the ConfigMaps and Secrets of tags past the cache. Needed.
	Live client.Reader
	// Evaluator says what the policies answer. Needed.
	Evaluator *gate.Evaluator
	// Keeper waits until signers and policies are active. Needed.
	Keeper interface{ Wait(context.Context) error }
	// Images reads an application's image for a CueArtifact of a namespace; nil means as the
	// Evaluator does.
	Images func(ctx context.Context, namespace string, app v1alpha1.Application) *access.Reader
	// Store keeps archives. Needed.
	Store *archives.Store
	// Events tells people. Needed.
	Events events.EventRecorder
	// Leader decides whether this replica writes; nil means that it does.
	Leader *leader.Elector
	// NoCrossNamespaceRefs denies sources of other namespaces.
	NoCrossNamespaceRefs bool
	// Concurrent is how many are rendered at once; zero means 2. One namespace has all but
	// one of the places.
	Concurrent int
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	// kinds are those of sources that the cluster has.
	kinds  map[string]bool
	memory *memory
	// changed says that all CueArtifacts are to be looked at.
	changed signal

	// mu guards what follows: what asks registries, and the term in which it does.
	mu    sync.Mutex
	term  context.Context
	queue *evaluations.Queue
}

func (r *Reconciler) externals() externals { return externals{r.Client, r.Flux} }

func (r *Reconciler) now() time.Time { return clock.OrSystem(r.Now)() }

// soon is when something is looked at again that the cache does not show as it is.
const soon = 500 * time.Millisecond

// Reconcile brings one CueArtifact up to date. A replica that does not lead does nothing.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (again ctrl.Result, err error) {
	led, err := r.Leader.Do(ctx, func(ctx context.Context) error {
		again, err = r.reconcile(ctx, request.NamespacedName)
		return err
	})
	switch {
	case !led:
		return ctrl.Result{}, nil
	case errors.Is(err, errBusy):
		return ctrl.Result{RequeueAfter: soon + rand.N(soon)}, nil //nolint:gosec // jitter guards no secret
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return again, err
}

func (r *Reconciler) reconcile(ctx context.Context, name types.NamespacedName) (ctrl.Result, error) {
	before := &v1alpha1.CueArtifact{}
	if err := r.Client.Get(ctx, name, before); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.forget(ctx, name)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("get CueArtifact %s: %w", name, err)
	}
	if !before.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	o := before.DeepCopy()
	m := r.memory.of(name)
	if before.Spec.Suspend {
		return ctrl.Result{}, r.keepAnnounced(ctx, o, m, errors.New("the CueArtifact is suspended: set spec.suspend to false"))
	}
	done, err := r.publish(ctx, o, m)
	if ctx.Err() != nil || errors.Is(err, errBusy) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{}, errors.Join(ctx.Err(), err)
	}
	if err != nil {
		err = errors.Join(err, r.keepAnnounced(ctx, o, m, err))
	}
	setConditions(o, err, done)
	if err := r.report(ctx, before, o, m, err); err != nil {
		return ctrl.Result{}, err
	}
	r.collect(ctx, m)
	return ctrl.Result{RequeueAfter: interval(o.Spec, err != nil && !isStalled(err))}, nil
}

// forget forgets a CueArtifact that is gone, and removes its archives. Its ExternalArtifact goes
// with it, by its owner. One that only left the cache, since its labels changed, keeps them.
func (r *Reconciler) forget(ctx context.Context, name types.NamespacedName) error {
	r.memory.forget(name)
	r.retain()
	switch err := r.Live.Get(ctx, name, &v1alpha1.CueArtifact{}); {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get CueArtifact %s: %w", name, err)
	}
	if err := r.Store.Remove(name); err != nil {
		return fmt.Errorf("remove artifacts of CueArtifact %s: %w", name, err)
	}
	return nil
}

// publish takes a CueArtifact through all steps. done says what is published. What is known by
// then is in the status of o, also where it fails.
func (r *Reconciler) publish(ctx context.Context, o *v1alpha1.CueArtifact, m *memo) (done string, err error) {
	source, err := r.source(ctx, o)
	if err != nil {
		return "", err
	}
	o.Status.LastAttemptedRevision = source.Revision
	leave, ok := r.memory.enter(o.Namespace, r.concurrent())
	if !ok {
		return "", errBusy
	}
	defer leave()
	rendered, err := r.prepare(ctx, o, m, *source)
	if err != nil {
		return "", err
	}
	o.Status.Applications = m.answers.listed()
	if o.Spec.RequireAllowed {
		if err := m.answers.held(); err != nil {
			return "", err
		}
	}
	stored, digest := m.artifact, m.digest
	if rendered != nil {
		a, err := r.Store.Put(o, source.Revision, rendered.yaml, rendered.digest)
		if err != nil {
			return "", retry(ReasonStorageFailed, "store revision %s: %w", source.Revision, err)
		}
		stored, digest = &a, rendered.digest
	}
	if err := r.externals().announce(ctx, o, *stored); err != nil {
		return "", err
	}
	// Until here the ExternalArtifact may say what was published before, which has to stay.
	m.artifact, m.digest = stored, digest
	o.Status.Artifact = published(*m.artifact)
	return fmt.Sprintf("published revision %s: %s", m.artifact.Revision, m.answers.summary()), nil
}

// prepare reads the values of tags, renders and asks the policies, within the CueArtifact's
// time. The caller has a place of its namespace.
func (r *Reconciler) prepare(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, source meta.Artifact) (*rendering, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout(o.Spec))
	defer cancel()
	tags, err := r.tags(ctx, o)
	if err != nil {
		return nil, err
	}
	if key := inputs(o, source, tags); key != m.key {
		m.begin(key)
	}
	rendered, err := r.rendering(ctx, o, m, source, tags)
	if err != nil {
		return nil, err
	}
	return rendered, r.answer(ctx, o, m, rendered, tags)
}

// rendering is what a source renders to; nil where that is published, stored and evaluated.
func (r *Reconciler) rendering(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, source meta.Artifact, t tagValues) (*rendering, error) {
	if m.digest != "" && !r.mustAnswer(m) && r.Store.Has(m.artifact) {
		return nil, nil
	}
	if kept, ok := r.memory.renderings.Get(m.key); ok {
		return kept, nil
	}
	rendered, err := r.render(ctx, o, source, t)
	if err != nil {
		return nil, err
	}
	r.memory.renderings.Put(m.key, rendered)
	return rendered, nil
}

// mustAnswer reports whether the policies are to be asked: they were not, or are others now,
// or have not answered about an application.
func (r *Reconciler) mustAnswer(m *memo) bool {
	return m.answers == nil || m.answers.unknown > 0 || m.answers.revision != r.policyRevision(m.answers.namespaces)
}

// answer has what the policies answer up to date.
func (r *Reconciler) answer(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, rendered *rendering, t tagValues) error {
	if rendered == nil || !r.mustAnswer(m) {
		return nil
	}
	a, err := r.evaluate(ctx, o, m, rendered.objects, t)
	if err != nil {
		return err
	}
	m.answered(a)
	r.retain()
	return nil
}

// keepAnnounced has what was published stay announced while nothing newer is published, and why
// says why. Where its archive was lost, the ExternalArtifact says so.
func (r *Reconciler) keepAnnounced(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, why error) error {
	if !r.Store.Has(m.artifact) {
		m.artifact = r.Store.Stored(o)
	}
	if m.artifact == nil {
		return r.externals().withdraw(ctx, o, why)
	}
	if err := r.externals().announce(ctx, o, *m.artifact); err != nil {
		return err
	}
	o.Status.Artifact = published(*m.artifact)
	return nil
}

// setConditions says what became of an attempt.
func setConditions(o *v1alpha1.CueArtifact, err error, done string) {
	ready := conditionOf(err, done)
	conditions.Set(o, &ready)
	// Each takes the other's place. One that stays keeps its time, so that nothing is written.
	switch {
	case err == nil:
		conditions.Delete(o, v1alpha1.ConditionStalled)
		conditions.Delete(o, v1alpha1.ConditionReconciling)
	case isStalled(err):
		conditions.MarkStalled(o, ready.Reason, "%s", ready.Message)
	default:
		conditions.MarkReconciling(o, meta.ProgressingWithRetryReason, "%s", ready.Message)
	}
	o.Status.ObservedGeneration = o.Generation
	o.Status.LastHandledReconcileAt = o.GetAnnotations()[meta.ReconcileRequestAnnotation]
}

// report patches the status once, if it says anything new, and sends an event about it.
func (r *Reconciler) report(ctx context.Context, before, o *v1alpha1.CueArtifact, m *memo, failed error) (err error) {
	defer func() {
		if err == nil && failed == nil {
			m.shown = !m.answers.hidden
		}
	}()
	if equality.Semantic.DeepEqual(before.Status, o.Status) {
		return nil
	}
	former := r.Store.Stored(before)
	err = r.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("patch status of CueArtifact %s: %w", client.ObjectKeyFromObject(o), err)
	}
	r.tell(before, o, former, m, failed)
	return nil
}

// tell sends an event about another failure than the status said before, and about a new
// revision.
func (r *Reconciler) tell(before, o *v1alpha1.CueArtifact, former *meta.Artifact, m *memo, failed error) {
	was, is := conditions.Get(before, v1alpha1.ConditionReady), conditions.Get(o, v1alpha1.ConditionReady)
	switch {
	case failed != nil && (was == nil || was.Reason != is.Reason || was.Message != is.Message):
		r.Events.Eventf(before, nil, corev1.EventTypeWarning, is.Reason, "Publish", "revision %s: %s", o.Status.LastAttemptedRevision, is.Message)
	case failed != nil || o.Status.Artifact == nil:
	case before.Status.Artifact == nil || before.Status.Artifact.Revision != o.Status.Artifact.Revision:
		r.Events.Eventf(before, nil, corev1.EventTypeNormal, ReasonNewArtifact, "Publish", "%s", r.describeNew(former, m))
	}
}

// collect removes what a newer archive replaced some time ago. Until here it was compared with.
func (r *Reconciler) collect(ctx context.Context, m *memo) {
	if m.artifact == nil {
		return
	}
	if err := r.Store.Collect(ctx, *m.artifact); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "remove former artifacts")
	}
}

// concurrent is how many are rendered at once.
func (r *Reconciler) concurrent() int { return places(r.Concurrent) }

// places is how many are rendered at once where so many are asked for.
func places(concurrent int) int { return cmp.Or(max(concurrent, 0), 2) }

// retain has the queue forget what no CueArtifact asks any more.
func (r *Reconciler) retain() {
	if _, queue := r.asking(); queue != nil {
		queue.Retain(r.memory.questions())
	}
}

// asking is what asks registries in the present term; nil where this replica does not lead.
func (r *Reconciler) asking() (context.Context, *evaluations.Queue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term, r.queue
}
