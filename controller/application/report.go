package application

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/lifecycle/history"
	"github.com/skep-dev/skep/placement"
	"github.com/skep-dev/skep/text"
)

// ReasonSuspended is the reason of Ready on an application that is suspended:
// nothing is asked for, so nothing is missing.
const ReasonSuspended = "Suspended"

// ReasonQueued is the reason of Ready on an application that waits to be evaluated for
// others of its namespace, which nobody is to be warned of.
const ReasonQueued = "Queued"

// report patches the status once, if it says anything new, and sends an event about what
// changed. A change that waits for others is written after st.delay.
func (r *Reconciler) report(ctx context.Context, st *state) error {
	before, app := st.app, st.app.DeepCopyObject().(application)
	if err := r.setStatus(app, st); err != nil {
		return err
	}
	r.Metrics.observe(app, st.observed)
	// One write with all of it: fluxcd's patch helper writes conditions and the
	// rest apart, and whoever looks in between sees a status that never was.
	if equality.Semantic.DeepEqual(before, app) {
		return nil
	}
	if st.delay = max(r.progress.wait(before, app, r.now()), readyDelay(before, app, st.sealed, r.now(), r.ReadyWithin)); st.delay > 0 {
		return nil
	}
	return r.patch(ctx, before, app)
}

// reportUnload has the status say what a tombstone ends if it still speaks of the version that was sealed before: what is
// evaluated next may wait for a registry.
func (r *Reconciler) reportUnload(ctx context.Context, st *state) error {
	p, before := st.sealed.Payload, st.app
	if p == nil || !p.Tombstone || before.Report().Serial == 0 || before.Report().Serial >= p.Serial || !conditions.Has(before, v1alpha1.ConditionAllowed) {
		return nil
	}
	app := before.DeepCopyObject().(application)
	if err := setDeployed(app, st, r.now()); err != nil {
		return err
	}
	if err := setHistory(&r.changeNames, app, st, r.now()); err != nil {
		return err
	}
	setReady(app, st)
	st.app = app
	return r.patch(ctx, before, app)
}

// patch writes the status of app, which was that of before.
func (r *Reconciler) patch(ctx context.Context, before, app application) error {
	// What differs is worked out from the cache, and is wrong over anything newer.
	err := r.Client.Status().Patch(ctx, app, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("patch status of %s: %w", app.Identity(), err)
	}
	r.patched.keep(app)
	r.progress.written(before, app, r.now())
	logDecisions(ctrl.LoggerFrom(ctx), before, app)
	sendEvent(r.Events, before, app)
	return nil
}

// readyDelay is how long the status of a version waits that was sealed a moment ago
// and is on its way to the nodes, but no longer than within; zero where it is to be written now. Until then
// status.observedGeneration is older than the object, which kstatus reads as
// InProgress, so nothing is lost on a reader.
func readyDelay(before, app application, sealed intents.Intent, now time.Time, within time.Duration) time.Duration {
	reason := conditions.GetReason(app, v1alpha1.ConditionReady)
	current := before.Report().ObservedGeneration == app.GetGeneration()
	if current || sealed.Payload == nil || reason != status.ReasonProgressing && reason != "Rollout"+string(v1alpha1.RolloutProgressing) {
		return 0
	}
	age := now.Sub(time.UnixMilli(sealed.Payload.VersionSerial()))
	if age < 0 {
		// Sealed by a clock that is ahead.
		return 0
	}
	return max(0, within-age)
}

// setStatus sets the status of app, a copy of the application, to what is known of it.
func (r *Reconciler) setStatus(app application, st *state) error {
	report, s := app.Report(), st.observed
	verified, allowed := s.Verified(st.why), s.Allowed(st.why)
	if moved := r.tags.moved(app.Identity()); moved != "" && s.Err == nil {
		verified.Message += fmt.Sprintf("; the tag stands for %s now, and is not followed: change the definition, or its annotation %s, to take that",
			moved, gate.AnnotationRequestedAt)
	}
	if cause := withheldCause(app, s); cause != "" {
		verified.Message += "; " + cause
	}
	conditions.Set(app, &verified)
	conditions.Set(app, &allowed)
	if s.Err == nil && s.Verdict.Unevaluated() == nil {
		report.Digest, report.Policies = s.Verdict.Image().Digest, s.Verdict.Decision().Policies
		evidence := s.Verdict.Evidence()
		report.Signers = evidence.Signers()
		report.SignedBy = history.SignedBy(report.Signers)
	}
	report.LastHandledReconcileAt, report.ObservedGeneration = app.GetAnnotations()[meta.ReconcileRequestAnnotation], app.GetGeneration()
	if err := setDeployed(app, st, r.now()); err != nil {
		return err
	}
	if err := setHistory(&r.changeNames, app, st, r.now()); err != nil {
		return err
	}
	setReady(app, st)
	return nil
}

// withheldCause is why a registry could not be reached, for an application of the cluster: administrators alone read these.
// The condition Ready does not name it, since Ready becomes an event in namespace default.
func withheldCause(app application, s lifecycle.Observation) string {
	switch {
	case app.GetNamespace() != "":
		return ""
	case s.Err != nil:
		return image.WithheldCause(s.Err)
	}
	return image.WithheldCause(s.Verdict.Unevaluated())
}

// setDeployed sets the status of app to what is deployed of it.
func setDeployed(app application, st *state, now time.Time) error {
	report := app.Report()
	report.Nodes, report.Rollout, report.PreviousDigest, report.Version = nil, nil, "", ""
	if st.sealed.Payload != nil {
		// Of an intent that was lost its serial is all there is to tell, and what a
		// resume is about.
		report.Serial = 0
	}
	if st.progress.Status.State != "" {
		report.Rollout = &st.progress.Status
	}
	c, err := deployed(app, st, now)
	if err == nil {
		conditions.Set(app, &c)
	}
	return err
}

// deployed sets the nodes in the status of app to what they report, and returns the condition that says it.
func deployed(app application, st *state, now time.Time) (metav1.Condition, error) {
	p := st.sealed.Payload
	if p == nil {
		if st.sealed.Report.Runs || st.lost() {
			return status.NotDeployed(runsOn), nil
		}
		return status.NotDeployed("nothing is deployed"), nil
	}
	nodes, err := st.nodes.Nodes()
	if err != nil {
		return metav1.Condition{}, err
	}
	if p.Tombstone {
		c, silent := status.Unloaded(p.UID, p.Serial, nodes, now)
		st.silent = silent
		if o := st.observed; o.Request.Application == nil || o.Err != nil {
			// No other condition says why.
			c.Message += "; " + p.Reason
		}
		return c, nil
	}
	report := app.Report()
	counts, err := status.Fold(wanted(*p, st.observed), nodes)
	if err != nil {
		return metav1.Condition{}, err
	}
	report.Nodes, report.Serial, report.Version = &counts, p.Serial, versionOf(*p)
	if generation, err := gate.Generation(app); err == nil {
		if before := rollout.UndoTarget(generation, p); before != nil && before.Undone == 0 {
			report.PreviousDigest = before.ImageDigest
		}
	}
	return status.Deployed(counts), nil
}

// versionOf names a version in a few characters: by the tag of its image, or the first digits of its digest.
func versionOf(p intent.Payload) string {
	const digits = len("sha256:") + 12
	if ref, err := image.Named(p.Image); err == nil && ref.Tag != "" {
		return text.CutRunes(ref.Tag, digits)
	}
	return p.ImageDigest[:min(digits, len(p.ImageDigest))]
}

// wanted is what nodes are to have of a version, and its kernels to be able to.
func wanted(p intent.Payload, s lifecycle.Observation) status.Wanted {
	var facts *bytecode.Facts
	if s.Err == nil && s.Verdict.Image().Digest == p.ImageDigest {
		facts = new(s.Verdict.Facts())
	}
	return status.Wanted{
		UID: p.UID, Serial: p.VersionSerial(), Revision: p.Revision(), Selector: p.NodeSelector, Needs: placement.Of(p, facts), Reaches: p.Reaches,
	}
}

// setReady sets Ready, and Reconciling or Stalled beside it, from what the
// pipeline's conditions say: the first that is not true says why. One that stays
// keeps the time it came to be, so that nothing is written where nothing is new;
// marking one of the two deletes the other.
func setReady(app application, st *state) {
	s := st.observed
	allowed, deployed := conditions.Get(app, v1alpha1.ConditionAllowed), conditions.Get(app, v1alpha1.ConditionDeployed)
	stalled := func(reason, message string) {
		conditions.MarkStalled(app, reason, "%s", message)
		conditions.MarkFalse(app, v1alpha1.ConditionReady, reason, "%s", message)
	}
	waiting := func(reason, message string) {
		conditions.MarkReconciling(app, reason, "%s", message)
		conditions.MarkFalse(app, v1alpha1.ConditionReady, reason, "%s", message)
	}
	ready := func(reason, message string) {
		conditions.Delete(app, v1alpha1.ConditionReconciling)
		conditions.Delete(app, v1alpha1.ConditionStalled)
		conditions.MarkTrue(app, v1alpha1.ConditionReady, reason, "%s", message)
	}
	switch {
	case app.Body().Suspend && st.sealed.Payload == nil && (st.sealed.Report.Runs || app.Report().Serial > 0):
		ready(ReasonSuspended, "it is suspended; "+runsOn)
	case app.Body().Suspend && deployed.Reason == status.ReasonUnloading:
		waiting(deployed.Reason, "it is suspended; "+deployed.Message)
	case app.Body().Suspend && deployed.Reason == status.ReasonNotDeployed:
		ready(ReasonSuspended, "it is suspended; "+deployed.Message)
	case app.Body().Suspend:
		ready(ReasonSuspended, "it is suspended; what runs is kept: "+deployed.Message)
	case errors.Is(s.Err, errQueued):
		waiting(ReasonQueued, s.Err.Error())
	case s.Err != nil:
		waiting(lifecycle.ReasonEvaluationFailed, s.Err.Error())
	case allowed.Status != metav1.ConditionTrue:
		stalled(allowed.Reason, strings.TrimSuffix(allowed.Message+"; "+st.why, "; "))
	case stopped(app.Report().Rollout):
		stalled(string("Rollout"+app.Report().Rollout.State), app.Report().Rollout.Message)
	case app.Report().Rollout != nil:
		waiting(string("Rollout"+app.Report().Rollout.State), app.Report().Rollout.Message)
	case deployed.Status == metav1.ConditionTrue:
		ready(deployed.Reason, deployed.Message+ofVersion(app))
	case deployed.Reason == status.ReasonNodesFailed || deployed.Reason == status.ReasonUnsupported:
		stalled(deployed.Reason, deployed.Message)
	default:
		waiting(deployed.Reason, deployed.Message)
	}
}

// stopped reports whether a rollout waits for people.
func stopped(r *v1alpha1.RolloutStatus) bool {
	return r != nil && slices.Contains([]v1alpha1.RolloutState{v1alpha1.RolloutStopped, v1alpha1.RolloutNoMatchingNodes, v1alpha1.RolloutRolledBack}, r.State)
}

// ofVersion names the version that runs, from the second on: each update is a transition of Ready.
func ofVersion(app application) string {
	if v := app.Report().CurrentVersion(); v != nil && v.Version > 1 {
		return fmt.Sprintf("; version %d", v.Version)
	}
	return ""
}

// ReasonUpdated is the reason of the event of a version that replaced another one, and is deployed.
const ReasonUpdated = "Updated"

// sendEvent writes an event if Ready says something new, another digest runs, an update is deployed or another definition is denied.
func sendEvent(to events.EventRecorder, before, now application) {
	was, is := conditions.Get(before, v1alpha1.ConditionReady), conditions.Get(now, v1alpha1.ConditionReady)
	if is == nil {
		return
	}
	if v := updated(before, now); v != nil {
		to.Eventf(now.(runtime.Object), nil, corev1.EventTypeNormal, ReasonUpdated, "Reconcile", "%s; %s",
			v.Summary(), strings.TrimSuffix(is.Message, ofVersion(now)))
		return
	}
	if was != nil && was.Status == is.Status && was.Reason == is.Reason && before.Report().Digest == now.Report().Digest && !newlyDenied(before, now) {
		return
	}
	kind := corev1.EventTypeNormal
	if is.Status == metav1.ConditionFalse && (conditions.IsStalled(now) || is.Reason == lifecycle.ReasonEvaluationFailed) {
		kind = corev1.EventTypeWarning
	}
	to.Eventf(now.(runtime.Object), nil, kind, is.Reason, "Reconcile", "%s", is.Message)
}
