package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/rollout"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// stamp is what an intent by a verdict carries beside it: the steps of a version
// that is new, or how far one has come that is not.
//
// A new version takes the place of one that was under way: what was before that
// one stays what was before. A version that was before is brought back at once.
// What else nodes may run still goes on where it does.
func (r *Reconciler) stamp(ctx context.Context, app application, mine sealed, s lifecycle.Observation) (gate.Stamp, error) {
	stamp, live := gate.Stamp{UID: string(app.GetUID())}, mine.payload
	through := ""
	if live != nil && !live.Tombstone {
		if s.Verdict.SameVersion(*live) {
			return r.carryOver(ctx, app, mine, s.Request), nil
		}
		if proven := live.Previous; reverts(s.Verdict, live) {
			stamp.Version, stamp.Withdrawn = proven.VersionSerial(), r.withdrawn(ctx, app, mine, s.Request, proven)
			return stamp, nil
		}
		before := lastFullyRolledOut(live)
		stamp.Withdrawn = r.withdrawn(ctx, app, mine, s.Request, before)
		switch {
		case before == nil:
			through = live.Rollout.Through
		case !r.mayKeep(ctx, app, s.Request, *before):
			// There is nothing to hold nodes at.
			return stamp, nil
		}
		stamp.Previous = before
	}
	if live == nil && mine.runs || mine.isBehindNodes() {
		// Nodes run what it takes the place of, or what came after it and was lost: they
		// would lose that meanwhile.
		return stamp, nil
	}
	fleet, err := r.fleet(ctx, app, s.Verdict.Version(), s)
	if err != nil {
		return stamp, err
	}
	stamp.Rollout = fleet.Start(through, stamp.Previous != nil, r.now())
	return stamp, nil
}

// carryOver takes what is sealed over to a new serial. Of one that was lost nobody
// knows how far its version had come: where there is a version before, it goes by
// its steps again, and where it runs already it may go on; else it comes to all,
// since the others would unload it.
func (r *Reconciler) carryOver(ctx context.Context, app application, mine sealed, request gate.Request) gate.Stamp {
	live := mine.payload
	stamp := gate.Stamp{UID: live.UID, Version: live.VersionSerial(), Rollout: live.Rollout, Previous: live.Previous, Withdrawn: live.Withdrawn}
	switch {
	case !mine.isBehindNodes() || live.Rollout == nil:
	case live.Previous != nil && r.mayKeep(ctx, app, request, *live.Previous):
		stamp.Withdrawn = r.withdrawn(ctx, app, mine, request, live.Previous)
	default:
		stamp.Rollout, stamp.Previous = nil, nil
	}
	return stamp
}

// reverts reports whether a verdict is about the version before what is live.
func reverts(v gate.Verdict, live *intent.Payload) bool {
	return live.Previous != nil && v.SameVersion(*live.Previous)
}

// lastFullyRolledOut is the newest version that came to every node it was meant for; nil
// where none did.
func lastFullyRolledOut(live *intent.Payload) *intent.Payload {
	if live.Rollout != nil {
		return live.Previous
	}
	before := live.Alone()
	before.Undone = 0
	return &before
}

// maxWithdrawn bounds the versions that one intent says nodes may go on with, the
// newest first.
const maxWithdrawn = 4

// withdrawn are those of the versions that an intent names which nodes may run
// still, but for some: its own, which they may have begun to run unheard of, and
// those beside it that they tell of. Where there is room left, those follow that
// they may run a part of.
func (r *Reconciler) withdrawn(ctx context.Context, app application, mine sealed, request gate.Request, but ...*intent.Payload) []intent.Payload {
	told, parts := []*intent.Payload{mine.payload}, []*intent.Payload{}
	for _, v := range mine.payload.Beside() {
		switch {
		case mine.report.of(versionOf(v)):
			told = append(told, v)
		case mine.report.part:
			parts = append(parts, v)
		}
	}
	var stay []intent.Payload
	for _, v := range append(told, parts...) {
		skip := slices.ContainsFunc(but, func(other *intent.Payload) bool { return other != nil && v.SameVersion(other) })
		again := slices.ContainsFunc(stay, func(other intent.Payload) bool { return v.SameVersion(&other) })
		if !skip && !again && len(stay) < maxWithdrawn && r.mayKeep(ctx, app, request, *v) {
			stay = append(stay, v.Alone())
		}
	}
	return stay
}

// otherVersions are the versions beside the own one of an intent that may not run on, by
// their VersionSerial.
type otherVersions struct {
	// intent is the serial of the intent.
	intent int64
	// gone may run no more. denied are unloaded by a policy to which unload protection
	// applies.
	gone   []int64
	denied []denied
	// unknown says that one could not be evaluated, own that the intent's own version may
	// run no more either.
	unknown, own bool
}

// denied is a version that policies want unloaded: one of the cluster, or those of its
// namespace alone.
type denied struct {
	serial    int64
	byCluster bool
}

// evaluateOtherVersions evaluates the versions beside what is live.
func (r *Reconciler) evaluateOtherVersions(ctx context.Context, s lifecycle.Observation) (otherVersions, error) {
	if !s.Runs() {
		return otherVersions{}, nil
	}
	b := otherVersions{intent: s.Live.Serial}
	for _, v := range s.Live.Beside() {
		switch fate := r.versionVerdict(ctx, s.Request, *v); {
		case fate.Denied:
			b.denied = append(b.denied, denied{v.VersionSerial(), fate.ByCluster})
		case !fate.Keeps:
			b.gone = append(b.gone, v.VersionSerial())
		default:
			b.unknown = b.unknown || !fate.Known
		}
	}
	if r.rulesChanged(s.Live.Application.Namespace) {
		return b, errOverruled
	}
	return b, nil
}

// versionVerdict is what is to become of a version beside another one, asked no longer than
// its namespace may.
func (r *Reconciler) versionVerdict(ctx context.Context, request gate.Request, version intent.Payload) lifecycle.VersionVerdict {
	ctx, done := r.limitEvaluation(ctx, version.Application.Namespace)
	defer done()
	o := lifecycle.ObserveVersion(request, version)
	o.Running = r.Evaluator.EvaluateRunning(ctx, o.Request, o.RunningToEvaluate())
	return o.VersionVerdict(r.Keeper.Revoked())
}

// mayKeep reports whether a version may go on beside another one. Where it is for the
// unload protection to say, it is counted; what cannot be counted is held.
func (r *Reconciler) mayKeep(ctx context.Context, app application, request gate.Request, version intent.Payload) bool {
	fate := r.versionVerdict(ctx, request, version)
	if !fate.Denied {
		return fate.Keeps
	}
	_, held, err := r.Keeper.Holds(ctx, app.Identity(), fate.ByCluster)
	return held || err != nil
}

// reevaluate evaluates a version that was sealed before, no longer than its namespace
// may.
func (r *Reconciler) reevaluate(ctx context.Context, request gate.Request, version intent.Payload) (gate.Verdict, error) {
	ctx, done := r.limitEvaluation(ctx, version.Application.Namespace)
	defer done()
	return r.Evaluator.Reevaluate(ctx, request, version)
}

// limitEvaluation is the time and the place that one evaluation of a namespace may take.
func (r *Reconciler) limitEvaluation(ctx context.Context, namespace string) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.EvaluationTimeout, evaluationTimeout))
	ctx, leave := r.limiter.enter(ctx, namespace)
	return ctx, func() {
		leave()
		cancel()
	}
}

// withdrawVersions has nodes neither hold nor go on with what may run no more beside what
// is live, though the definition may be suspended, undone, broken or out of reach.
// Where nodes have seen a newer intent, what a policy denies waits until this one
// is sealed over it; what a revocation took does not.
func (r *Reconciler) withdrawVersions(ctx context.Context, mine sealed, b otherVersions) (sealed, error) {
	gone := slices.Clone(b.gone)
	if !mine.isBehindNodes() {
		for _, v := range b.denied {
			gone = append(gone, v.serial)
		}
	}
	if len(gone) == 0 || mine.payload == nil || mine.payload.Serial != b.intent {
		return mine, nil
	}
	live := *mine.payload
	// What may run no more itself comes to no node by this.
	if mine.isBehindNodes() && live.Rollout != nil && !b.own {
		through, err := r.furthestNode(ctx, live)
		if err != nil {
			return mine, err
		}
		live.Rollout = &intent.Rollout{Step: live.Rollout.Step, Through: max(live.Rollout.Through, through), Since: live.Rollout.Since}
	}
	envelope, err := gate.WithdrawVersions(r.Keys().Sealer, live, r.serial(mine), gone)
	if err != nil {
		return mine, err
	}
	ctrl.LoggerFrom(ctx).Info("a version beside the newest may run no more, and is unloaded where it runs", "application", mine.payload.Application.String())
	return r.putEnvelope(ctx, mine, envelope, mine.object.Annotations[annotationCRD])
}

// furthestNode is the greatest hash of the nodes that report another version than those
// beside the live one: an intent that was lost had brought it there, and a step that
// came less far would unload it.
func (r *Reconciler) furthestNode(ctx context.Context, live intent.Payload) (through string, err error) {
	var known []version
	for _, v := range live.Beside() {
		known = append(known, versionOf(v))
	}
	var nodes v1alpha1.BpfNodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list what nodes report: %w", err)
	}
	for i := range nodes.Items {
		a := nodes.Items[i].Status.Of(live.UID)
		if a == nil {
			continue
		}
		if said := (nodeReport{}).and(*a); said.runs && !slices.ContainsFunc(known, said.of) {
			through = max(through, intent.NodeHash(live.UID, nodes.Items[i].Name))
		}
	}
	return through, nil
}

// fleet orders the nodes that a version is meant for.
func (r *Reconciler) fleet(ctx context.Context, app application, version intent.Payload, s lifecycle.Observation) (rollout.Fleet, error) {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return rollout.Fleet{}, err
	}
	version.UID = string(app.GetUID())
	answers, err := status.Answers(wanted(version, s), nodes)
	return rollout.Of(app.Body().Rollout, version.UID, answers), err
}

// rolloutAtRest tells how a rollout stands that there is none of, or that is not to move
// whatever its nodes say.
func (r *Reconciler) rolloutAtRest(mine sealed, s lifecycle.Observation, hold v1alpha1.RolloutStatus) (p rollout.Progress, still bool) {
	live := mine.payload
	say := func(state v1alpha1.RolloutState, message string) (rollout.Progress, bool) {
		return rollout.Progress{Status: v1alpha1.RolloutStatus{State: state, Message: message}}, true
	}
	switch {
	case s.Undone && live.Tombstone:
		return say(v1alpha1.RolloutRolledBack, "it was rolled back, and the version before may run no more; change the definition, or see skep rollout resume")
	case s.Undone:
		return say(v1alpha1.RolloutRolledBack, "the version before was brought back to every node; change the definition, or see skep rollout resume")
	case hold.State != "" && (live == nil || live.Rollout == nil || mine.isBehindNodes()):
		return rollout.Progress{Status: hold}, true
	case live == nil || live.Tombstone || live.Rollout == nil:
		return p, true
	case mine.isBehindNodes():
		return say(v1alpha1.RolloutProgressing, "nodes have seen a newer intent, which the API server lost; this one waits to be sealed over it")
	}
	return p, false
}

// advanceRollout moves a rollout that can go on, and tells how it stands.
func (r *Reconciler) advanceRollout(ctx context.Context, app application, mine sealed, s lifecycle.Observation, hold v1alpha1.RolloutStatus) (sealed, rollout.Progress, error) {
	if p, still := r.rolloutAtRest(mine, s, hold); still {
		return mine, p, nil
	}
	live := mine.payload
	fleet, err := r.fleet(ctx, app, *live, s)
	if err != nil {
		return mine, rollout.Progress{}, err
	}
	progress := fleet.Look(*live, r.now(), resumed(app, live.Serial))
	if hold.State != "" {
		progress.Moves, progress.Status.State, progress.Status.Message, progress.Status.BlockedDefinition = false, hold.State, hold.Message, hold.BlockedDefinition
	}
	// What is frozen does not move either.
	if !progress.Moves || s.Err != nil || app.Body().Suspend || !s.Verdict.Same(*live) {
		return mine, progress, nil //nolint:nilerr // what cannot be evaluated does not move
	}
	stamp := gate.Stamp{UID: live.UID, Version: live.VersionSerial(), Rollout: progress.Next, Previous: live.Previous, Withdrawn: live.Withdrawn}
	ctrl.LoggerFrom(ctx).Info("rollout moves on", "application", live.Application.String(), "step", stamp.Rollout)
	mine, err = r.seal(ctx, mine, s.Verdict, stamp, mine.object.Annotations[annotationCRD])
	if err != nil || stamp.Rollout == nil {
		return mine, rollout.Progress{}, err
	}
	return mine, fleet.Look(*mine.payload, r.now(), false), nil
}

// rollBack takes a version that may not run from the nodes that its rollout came to,
// where the one before may run: false where all is to be unloaded. The one before
// takes its place for good once it can be evaluated, and would be admitted.
func (r *Reconciler) rollBack(ctx context.Context, app application, mine sealed, s lifecycle.Observation) (sealed, bool, error) {
	live := mine.payload
	if !s.Runs() || live.Rollout == nil || live.Previous == nil {
		return mine, false, nil
	}
	crd := mine.object.Annotations[annotationCRD]
	if v, err := r.reevaluate(ctx, s.Request, *live.Previous); err == nil && v.Allowed() {
		now, err := r.seal(ctx, mine, v, gate.Stamp{
			UID: live.UID, Version: live.Previous.VersionSerial(), Withdrawn: r.withdrawn(ctx, app, mine, s.Request, live.Previous, live),
		}, crd)
		if !errors.Is(err, errUnsealable) {
			return now, true, err
		}
	}
	switch {
	case !r.mayKeep(ctx, app, s.Request, *live.Previous):
		return mine, false, nil
	case live.Rollout.Through == "":
		return mine, true, nil
	}
	mine, err := r.withdraw(ctx, mine)
	return mine, true, err
}

// runsOn is what becomes of what nodes run by an intent that is not there any more.
const runsOn = "of an intent that was lost, what runs goes on, whatever is revoked"

// applyRequests does what people undid, and says why a version is held back: the zero value
// where it is not. What runs is evaluated by itself in both cases.
func (r *Reconciler) applyRequests(ctx context.Context, app application, mine sealed, s *lifecycle.Observation) (now sealed, hold v1alpha1.RolloutStatus, err error) {
	mine, hold, err = r.undo(ctx, app, mine, s)
	if err == nil && hold.State == "" {
		hold, err = r.lostIntentReason(app, mine)
	}
	if err == nil && hold.State == "" {
		hold, err = r.noMatchingNodesReason(ctx, app, mine, *s)
	}
	if err != nil {
		return mine, hold, err
	}
	if hold.State != "" && (mine.payload == nil || mine.isBehindNodes()) {
		hold.Message += "; " + runsOn
	}
	if s.Frozen = hold.State != ""; s.Frozen || s.Undone {
		r.hold(ctx, s)
	}
	return mine, hold, nil
}

// undo brings the version before back to every node, where people asked for
// that of the definition as it is, but for whether it is suspended and its steps:
// what is sealed says so of an undo that was done, and the status of one that was
// not. What was unloaded since stays so. hold is why it could not be done: the
// rollout goes no further then either.
func (r *Reconciler) undo(ctx context.Context, app application, mine sealed, s *lifecycle.Observation) (now sealed, hold v1alpha1.RolloutStatus, err error) {
	live := mine.payload
	generation, err := gate.Generation(app)
	if err != nil {
		return mine, hold, err
	}
	wanted, said := r.wantsUndo(app, generation), app.Report().Rollout
	if live == nil || app.GetAnnotations()[v1alpha1.AnnotationUndo] == "" {
		return mine, hold, nil
	}
	done := live.Undone == generation
	if !done && !wanted && (said == nil || said.BlockedDefinition != generation) {
		return mine, hold, nil
	}
	if overtaken, _ := r.nodesAreAhead(mine); !done || overtaken && !live.Tombstone && !app.Body().Suspend {
		var why string
		if mine, why, err = r.sealUndo(ctx, app, mine, *s, generation); why != "" || err != nil {
			return mine, v1alpha1.RolloutStatus{State: v1alpha1.RolloutStopped, Message: why, BlockedDefinition: generation}, err
		}
		s.Live, s.Running = mine.payload, gate.RunningVerdict{}
	}
	s.Undone = true
	return mine, hold, nil
}

// hold evaluates what runs by itself where its definition does not take its place, such
// as one that was undone or is held back. What is known of it by now is not asked again.
// A namespace of which enough evaluations wait has no registry asked for one more.
func (r *Reconciler) hold(ctx context.Context, s *lifecycle.Observation) {
	if s.Running != (gate.RunningVerdict{}) {
		return
	}
	namespace := s.Request.Application.GetNamespace()
	if r.limiter.full(namespace) {
		ctx = registry.CacheOnly(ctx)
	}
	ctx, done := r.limitEvaluation(ctx, namespace)
	defer done()
	s.Running = r.Evaluator.EvaluateRunning(ctx, s.Request, s.RunningToEvaluate())
}

// lostIntentReason is why a version is held back whose intent was lost, and with it that
// it was undone, or stopped: its own status and people's word are what is left of
// that. One that came to no node was stopped by nobody. What was stopped and not
// undone is named by the negative of its generation: an old undo that stands there
// rolloutAtRest is not of it, should the intent come back.
func (r *Reconciler) lostIntentReason(app application, mine sealed) (hold v1alpha1.RolloutStatus, err error) {
	generation, err := gate.Generation(app)
	report := app.Report()
	if err != nil || mine.payload != nil || resumed(app, report.Serial) {
		return hold, err
	}
	said, looked := cmp.Or(report.Rollout, &v1alpha1.RolloutStatus{}), report.ObservedGeneration == app.GetGeneration()
	undone := said.BlockedDefinition == generation || looked && said.State == v1alpha1.RolloutRolledBack ||
		mine.lost && r.wantsUndo(app, generation)
	halted := said.BlockedDefinition == -generation || looked && said.State == v1alpha1.RolloutStopped
	switch {
	case undone:
		hold.BlockedDefinition = generation
	case halted:
		hold.BlockedDefinition = -generation
	default:
		return hold, nil
	}
	hold.State = v1alpha1.RolloutStopped
	hold.Message = "it was undone or stopped, and its intent was lost since: change the definition, or have it rolled out by skep rollout resume"
	return hold, nil
}

// resumed reports whether people asked for a step to count as done: serial is that of
// the newest intent.
func resumed(app application, serial int64) bool {
	return app.GetAnnotations()[v1alpha1.AnnotationResume] == strconv.FormatInt(serial, 10)
}

// noMatchingNodesReason is why a version is held back that comes to no node where nodes may run
// what it takes the place of, and would lose that at once: there is nothing to hold them
// at, by an intent that was lost or because the first version is on its way yet, or
// it is the version before, which has no steps.
func (r *Reconciler) noMatchingNodesReason(ctx context.Context, app application, mine sealed, s lifecycle.Observation) (hold v1alpha1.RolloutStatus, err error) {
	live := mine.payload
	loses := mine.lost || live != nil && !s.Verdict.SameVersion(*live) && (mine.isBehindNodes() || s.Runs() && (lastFullyRolledOut(live) == nil || reverts(s.Verdict, live)))
	if !loses || !s.Verdict.Allowed() || resumed(app, app.Report().Serial) {
		return hold, nil
	}
	why, err := r.matchesNoNode(ctx, app, mine, s.Verdict.Version(), s)
	if err != nil || why == "" {
		return hold, err
	}
	return v1alpha1.RolloutStatus{State: v1alpha1.RolloutNoMatchingNodes, Message: rollout.HeldBack(why)}, nil
}

// matchesNoNode is why a version comes to no node, where nodes may run something that it
// would take the place of; empty where it comes to some, or there is nothing to lose.
func (r *Reconciler) matchesNoNode(ctx context.Context, app application, mine sealed, version intent.Payload, s lifecycle.Observation) (why string, err error) {
	fleet, err := r.fleet(ctx, app, version, s)
	if err != nil || fleet.Empty() == "" {
		return "", err
	}
	if lose, err := r.nodesWouldLose(ctx, mine); err != nil || !lose {
		return "", err
	}
	return fleet.Empty(), nil
}

// nothingBefore is why an undo cannot be done.
const nothingBefore = "there is no version before to bring back: change the definition, or see skep rollout resume"

// sealUndo seals what an undo of the definition of a generation brings back.
func (r *Reconciler) sealUndo(ctx context.Context, app application, mine sealed, s lifecycle.Observation, generation int64) (now sealed, hold string, err error) {
	live := mine.payload
	before, err := undoTarget(app, live)
	switch {
	case err != nil:
		return mine, "", err
	case app.Body().Suspend:
		return mine, "the application is suspended, and the version before comes back once it is not", nil
	case live.Tombstone || before == nil:
		return mine, nothingBefore, nil
	}
	if before != live {
		if why, err := r.matchesNoNode(ctx, app, mine, *before, s); err != nil || why != "" {
			return mine, "the version before is not brought back: " + why + "; change the definition, or see skep rollout resume", err
		}
	}
	v, err := r.reevaluate(ctx, s.Request, *before)
	switch {
	case err != nil:
		return mine, fmt.Sprintf("the version before cannot be evaluated, and is not brought back yet: %v", err), nil
	case !v.Allowed():
		return mine, "the version before is not allowed any more, and cannot be brought back: change the definition, or see skep rollout resume", nil
	}
	stamp := gate.Stamp{UID: live.UID, Version: before.VersionSerial(), Previous: before.Previous, Withdrawn: live.Withdrawn, Undone: generation}
	if before != live {
		stamp.Withdrawn = r.withdrawn(ctx, app, mine, s.Request, before)
	}
	mine, err = r.seal(ctx, mine, v, stamp, mine.object.Annotations[annotationCRD])
	if errors.Is(err, errUnsealable) {
		return mine, "the version before is not brought back: " + err.Error(), nil
	}
	return mine, "", err
}

// undoTarget is what an undo of a definition brings back, nil where there is nothing.
// Of a definition that was never sealed, the version before is what runs.
func undoTarget(app v1alpha1.Application, live *intent.Payload) (*intent.Payload, error) {
	generation, err := gate.Generation(app)
	if err != nil {
		return nil, err
	}
	if live.Undone != 0 || live.Rollout == nil && live.Generation != generation {
		return live, nil
	}
	return live.Previous, nil
}
