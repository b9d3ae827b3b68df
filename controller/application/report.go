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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/placement"
)

// ReasonSuspended is the reason of Ready on an application that is suspended:
// nothing is asked for, so nothing is missing.
const ReasonSuspended = "Suspended"

// ReasonQueued is the reason of Ready on an application that waits to be evaluated for
// others of its namespace, which nobody is to be warned of.
const ReasonQueued = "Queued"

// report patches the status, where it says anything else than before, and tells
// people what changed for them. What waits with others to be told is told later,
// and wait is when.
func (r *Reconciler) report(ctx context.Context, before application, mine sealed, s lifecycle.Observation, p rollout.Progress, why string) (wait time.Duration, err error) {
	app := before.DeepCopyObject().(application)
	if err := r.describe(ctx, app, mine, s, p, why); err != nil {
		return 0, err
	}
	r.Metrics.observe(app, s)
	// One write with all of it: fluxcd's patch helper writes conditions and the
	// rest apart, and whoever looks in between sees a status that never was.
	if equality.Semantic.DeepEqual(before, app) {
		return 0, nil
	}
	if wait := max(r.progress.wait(before, app, r.now()), r.readyDelay(before, app, mine)); wait > 0 {
		return wait, nil
	}
	// What differs is worked out from the cache, and is wrong over anything newer.
	err = r.Client.Status().Patch(ctx, app, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("patch status of %s: %w", app.Identity(), err)
	}
	r.patched.keep(app)
	r.progress.written(before, app, r.now())
	r.tell(before, app)
	return 0, nil
}

// readyDelay is how long the status of a version waits that was sealed a moment ago
// and is on its way to the nodes; zero where it is to be written now. Until then
// status.observedGeneration is older than the object, which kstatus reads as
// InProgress, so nothing is lost on a reader.
func (r *Reconciler) readyDelay(before, app application, mine sealed) time.Duration {
	reason := conditions.GetReason(app, v1alpha1.ConditionReady)
	current := before.Report().ObservedGeneration == app.GetGeneration()
	if current || mine.payload == nil || reason != status.ReasonProgressing && reason != "Rollout"+string(v1alpha1.RolloutProgressing) {
		return 0
	}
	age := r.now().Sub(time.UnixMilli(mine.payload.VersionSerial()))
	if age < 0 {
		// Sealed by a clock that is ahead.
		return 0
	}
	return max(0, r.ReadyWithin-age)
}

// describe writes into an application's status what is known of it.
func (r *Reconciler) describe(ctx context.Context, app application, mine sealed, s lifecycle.Observation, p rollout.Progress, why string) error {
	report := app.Report()
	verified, allowed := s.Verified(why), s.Allowed(why)
	if moved := r.tags.moved(app.Identity()); moved != "" && s.Err == nil {
		verified.Message += fmt.Sprintf("; the tag stands for %s now, and is not followed: change the definition, or its annotation %s, to take that", moved, gate.AnnotationRequestedAt)
	}
	conditions.Set(app, &verified)
	conditions.Set(app, &allowed)
	if s.Err == nil && s.Verdict.Unevaluated() == nil {
		report.Digest, report.Policies = s.Verdict.Image().Digest, s.Verdict.Decision().Policies
		evidence := s.Verdict.Evidence()
		report.Signers = evidence.Signers()
		report.SignedBy = signedBy(report.Signers)
	}
	report.LastHandledReconcileAt = app.GetAnnotations()[meta.ReconcileRequestAnnotation]
	report.Nodes, report.ObservedGeneration = nil, app.GetGeneration()
	report.Rollout, report.PreviousDigest = nil, ""
	if mine.payload != nil {
		// Of an intent that was lost its serial is all there is to tell, and what a
		// resume is about.
		report.Serial = 0
	}
	if p.Status.State != "" {
		report.Rollout = &p.Status
	}
	deployed := metav1.Condition{Type: v1alpha1.ConditionDeployed, Status: metav1.ConditionFalse, Reason: status.ReasonNotDeployed, Message: "nothing is deployed"}
	if p := mine.payload; p != nil && !p.Tombstone {
		counts, err := r.fold(ctx, *p, s)
		if err != nil {
			return err
		}
		report.Nodes, report.Serial = &counts, p.Serial
		if before, err := undoTarget(app, p); err == nil && before != nil && before.Undone == 0 {
			report.PreviousDigest = before.ImageDigest
		}
		deployed = status.Deployed(counts)
	}
	conditions.Set(app, &deployed)
	conclude(app, mine, s, why)
	return nil
}

// signedBy is the first three of some signers in one line, and how many more there
// are.
func signedBy(signers []string) string {
	const most = 3
	line := strings.Join(signers[:min(most, len(signers))], ",")
	if more := len(signers) - most; more > 0 {
		line += fmt.Sprintf(" (and %d more)", more)
	}
	return line
}

// fold counts what the nodes say of an intent.
func (r *Reconciler) fold(ctx context.Context, p intent.Payload, s lifecycle.Observation) (v1alpha1.NodesStatus, error) {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return v1alpha1.NodesStatus{}, err
	}
	return status.Fold(wanted(p, s), nodes)
}

// wanted is what nodes are to have of a version, and its kernels to be able to.
func wanted(p intent.Payload, s lifecycle.Observation) status.Wanted {
	var facts *bytecode.Facts
	if s.Err == nil && s.Verdict.Image().Digest == p.ImageDigest {
		facts = new(s.Verdict.Facts())
	}
	return status.Wanted{UID: p.UID, Serial: p.VersionSerial(), Revision: p.Revision(), Selector: p.NodeSelector, Needs: placement.Of(p, facts), Reaches: p.Reaches}
}

// nodes are the cluster's nodes with what their agents say, as the cache has
// them: nobody may change them.
func (r *Reconciler) nodes(ctx context.Context) ([]status.Node, error) {
	var list corev1.NodeList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var reports v1alpha1.BpfNodeList
	if err := r.Client.List(ctx, &reports, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list what nodes report: %w", err)
	}
	reported := map[string]*v1alpha1.BpfNodeStatus{}
	for i := range reports.Items {
		reported[reports.Items[i].Name] = &reports.Items[i].Status
	}
	var (
		agents map[string]bool
		gone   map[string]time.Time
	)
	if r.Agents != nil {
		var err error
		if agents, gone, err = r.Agents(ctx); err != nil {
			return nil, err
		}
	}
	nodes := make([]status.Node, 0, len(list.Items))
	for i := range list.Items {
		n := &list.Items[i]
		alive := ready(n) && (r.Agents == nil || agents[n.Name])
		nodes = append(nodes, status.Node{Name: n.Name, Labels: n.Labels, Ready: alive, Gone: unreachableSince(n, alive, gone), Reported: reported[n.Name]})
	}
	return nodes, nil
}

// unreachableSince is when a node went away: as its kubelet's silence has it, else when its
// agent did; nil where that is not known.
func unreachableSince(n *corev1.Node, alive bool, agents map[string]time.Time) *time.Time {
	if alive {
		return nil
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return &c.LastTransitionTime.Time
		}
	}
	if at, known := agents[n.Name]; known {
		return &at
	}
	return nil
}

// ready reports whether the kubelet of a node says that it is well.
func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// conclude sets Ready, and Reconciling or Stalled beside it, from what the
// pipeline's conditions say: the first that is not true says why. One that stays
// keeps the time it came to be, so that nothing is written where nothing is new;
// marking one of the two deletes the other.
func conclude(app application, mine sealed, s lifecycle.Observation, why string) {
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
	case app.Body().Suspend && mine.payload == nil && (mine.report.runs || app.Report().Serial > 0):
		ready(ReasonSuspended, "it is suspended; "+runsOn)
	case app.Body().Suspend && deployed.Reason == status.ReasonNotDeployed:
		ready(ReasonSuspended, "it is suspended, and nothing of it is deployed")
	case app.Body().Suspend:
		ready(ReasonSuspended, "it is suspended; what runs is kept: "+deployed.Message)
	case errors.Is(s.Err, errQueued):
		waiting(ReasonQueued, s.Err.Error())
	case s.Err != nil:
		waiting(lifecycle.ReasonEvaluationFailed, s.Err.Error())
	case allowed.Status != metav1.ConditionTrue:
		stalled(allowed.Reason, strings.TrimSuffix(allowed.Message+"; "+why, "; "))
	case stopped(app.Report().Rollout):
		stalled(string("Rollout"+app.Report().Rollout.State), app.Report().Rollout.Message)
	case app.Report().Rollout != nil:
		waiting(string("Rollout"+app.Report().Rollout.State), app.Report().Rollout.Message)
	case deployed.Status == metav1.ConditionTrue:
		ready(deployed.Reason, deployed.Message)
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

// tell writes an event where Ready says something new, and the digest that runs
// where it changed.
func (r *Reconciler) tell(before, now application) {
	was, is := conditions.Get(before, v1alpha1.ConditionReady), conditions.Get(now, v1alpha1.ConditionReady)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason && before.Report().Digest == now.Report().Digest {
		return
	}
	kind := corev1.EventTypeNormal
	if is.Status == metav1.ConditionFalse && (conditions.IsStalled(now) || is.Reason == lifecycle.ReasonEvaluationFailed) {
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(now.(runtime.Object), nil, kind, is.Reason, "Reconcile", "%s", is.Message)
}
