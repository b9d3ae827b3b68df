package agent

import (
	"time"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/act"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/finish"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/observe"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/position"
	"github.com/skep-dev/skep/agent/reconcile/prepare"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/starts"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
)

// reconcile is one look at the node and what follows from it. Its fields last as long.
type reconcile struct {
	env  *env
	loop *loop
	// intents are those that were accepted before it began, with their applications.
	intents *accepted.Round
	// seen is the node, and look what the kernel says of links.
	seen *observe.Round
	look *live.Look
	// The rounds are what this reconcile asks for.
	objectRound *objects.Round
	loadRound   *build.Round
	lookupRound *targets.Round
	// The parts have their own state. They share the decisions, which they change by its verbs.
	versions  *prepare.Versions
	decisions *decide.Decisions
	admission *admission.Round
	chains    *chainfit.Round
	positions *position.Round
	actor     *act.Actor
	// unmanagedFiles by the uid they lie under.
	unmanagedFiles map[string][]string
	// observed reports that the kernel could be read, and acted that there were actions to do. left reports that it was left
	// before anything but what ends was done.
	observed, acted, left bool
}

// reconcileOnce looks once, and does what can be done without waiting for anything.
//
// Three rules hold. What only ends something comes first: no reading of an object, no load
// and no claim of others is before it, and of the look at the kernel only links and chains. Writes of maps are before
// all, the look included. The kernel's answer comes before bookkeeping: no link, revision or chain is forgotten before the kernel
// confirmed that it is gone. Nothing is written back to what was accepted before finish.
func (a *Agent) reconcileOnce() *reconcile {
	a.loop.loads.Collect()
	a.loop.live.Unused.Free(a.opts.Clock())
	full := a.changes.Begin() || !a.loop.node.HasPods()
	if full {
		a.loop.fullAt = a.opts.Clock()
	}
	rec := a.newReconcile(full)
	defer rec.finish()
	gone := rec.decisions.GoneByIntent()
	rec.actor.SwitchOff(gone)
	rec.look.Set.Sever(gone)
	a.loop.readers.Withdraw(rec.intents.Applications, gone)
	if err := rec.observe(); err != nil {
		a.opts.Log.Error("look at the kernel; what must end ends nevertheless", "error", err)
		a.changes.AskFull()
		rec.endUnseen(err)
		rec.lookAtPins()
		return rec
	}
	rec.observed = true
	rec.decisions.ChooseGone()
	rec.end()
	if rec.leaves() {
		return rec
	}
	rec.lookAtPins()
	if rec.leaves() {
		return rec
	}
	// What is decided from here on is known to this reconcile alone until it finishes.
	rec.decisions.Choose()
	rec.end()
	rec.admission.Admit()
	if o, counts := a.opts.Observer.(TargetObserver); counts {
		o.Shared(rec.versions.Shared())
	}
	rec.chains.Fit()
	rec.positions.Choose(rec.decisions.Want, rec.look.State())
	actions := plan.Make(rec.decisions.Want, rec.positions.Mark(rec.look.State()))
	rec.acted = rec.acted || len(actions) > 0
	rec.actor.Act(actions)
	rec.actor.FinishUnloads()
	rec.admission.AdmitLoads()
	rec.admission.Remember()
	return rec
}

// How long after one that was not left a reconcile may be: whatever arrives, all is decided each second, and whatever
// containers start and loads end, each tenth of it.
const mayBeLeft, mayBeLeftForLess = time.Second, 100 * time.Millisecond

// leaves reports whether the reconcile ends here, for an intent that arrived, which may be a revocation, for a container that
// waits to start, or for a load that ended. The next one begins at once.
func (rec *reconcile) leaves() bool {
	since := rec.env.opts.Clock().Sub(rec.loop.wholeAt)
	hasLess := func() bool {
		return rec.env.starts.IsWaitingBeside(rec.seen.Pods.Snapshot) || rec.loop.loads.HasEnded()
	}
	rec.left = since < mayBeLeft && rec.intents.HasArrived() || since < mayBeLeftForLess && hasLess()
	return rec.left
}

// endUnseen ends what can be ended without the interfaces of the node, which could not be read, and reports
// on no other application.
func (rec *reconcile) endUnseen(err error) {
	rec.look.Observe(nil, rec.loop.namespaces)
	rec.decisions.ChooseGone()
	rec.end()
	rec.decisions.ReportUnseen(err)
}

// end does what only ends something, as far as it is decided.
func (rec *reconcile) end() {
	endings := plan.Endings(rec.decisions.Want, rec.look.State())
	rec.acted = rec.acted || len(endings) > 0
	rec.actor.End(endings)
}

// newReconcile begins a reconcile of the applications as they are now, with all pods read anew if it is a full one.
func (a *Agent) newReconcile(full bool) *reconcile {
	now, o, l := a.opts.Clock(), &a.opts, a.loop
	intents := a.accepted.Begin()
	known := intents.Known()
	seen := l.node.Begin(known, &l.live.Open, full)
	rec := &reconcile{env: a.env, loop: l, intents: intents, seen: seen, look: l.live.Look(),
		objectRound: a.objects.Begin(), loadRound: l.loads.Begin(), lookupRound: l.lookups.Begin(now, seen.Pods)}
	node := version.Node{Name: o.Node, Labels: intents.Labels}
	versions := prepare.New(prepare.Versions{Log: o.Log, Now: now, Node: node, Profile: o.Profile, Pin: a.pins.PinRevision, Look: rec.look,
		Sharing: sharing.Of(node, known),
		Memory:  l.admission.Memory, Measured: l.admission.Profiles,
		ObjectRound: rec.objectRound, LoadRound: rec.loadRound, LookupRound: rec.lookupRound, SharedTargets: o.SharedTargets, Granted: version.Granted(known)})
	rec.versions = versions
	rec.decisions = decide.New(decide.Options{Log: o.Log, Now: now, Node: node, Look: rec.look, Prepare: versions.Prepare, Applications: intents.States()})
	rec.admission = l.admission.Begin(rec.decisions, rec.loadRound, rec.lookupRound)
	rec.chains = l.chains.Begin(rec.decisions, rec.admission, rec.objectRound, rec.loadRound)
	rec.positions = l.positions.Begin(now, position.AroundLinks(rec.look.Link, rec.look.Facts, func() *others.Round { return rec.look.Others }))
	rec.actor = act.New(act.Options{Log: o.Log, Clock: o.Clock, Now: now, Observer: o.Observer, Pins: a.pins, Decisions: rec.decisions, Look: rec.look,
		Chains: rec.chains, Positions: rec.positions, Attempts: l.attempts, Longest: o.BackOff.Longest(), Conflicts: l.conflicts, Measured: l.admission.Profiles,
		NoDriver:    rec.admission.NoteNoDriver,
		ObjectRound: rec.objectRound, LoadRound: rec.loadRound, LookupRound: rec.lookupRound,
		// A container, or an intent such as that of a revocation, waits for the next reconcile.
		IsHurried: func() bool { return a.starts.IsWaiting() || intents.HasArrived() }})
	return rec
}

// observe reads what is in the kernel.
func (rec *reconcile) observe() error {
	interfaces, err := rec.env.devices(rec.seen, rec.lookupRound)
	if err != nil {
		return err
	}
	// In network namespaces that are seen for the first time, this ends what an earlier agent left.
	rec.loop.live.Filters.Sweep(rec.lookupRound.Present())
	rec.look.Observe(interfaces, rec.loop.namespaces)
	rec.look.NoteSevered(func(l *plan.Link, facts pins.Facts) bool {
		return l.Attachment.Netfilter.Hook == "" || rec.lookupRound.Runs(l.Attachment, facts.Priority, facts.Program)
	})
	return nil
}

// pinsPause is how long after a look at pins none is made again for those that were removed: most of them Skep removed itself.
const pinsPause = time.Second

// lookAtPins makes pins again that were removed, and finds files that are not Skep's. With thousands of links that takes long.
func (rec *reconcile) lookAtPins() {
	if !rec.seen.IsIncremental() || rec.env.opts.Clock().Sub(rec.loop.pinsAt) >= pinsPause && rec.env.changes.ArePinsAsked() {
		rec.loop.pinsAt = rec.env.opts.Clock()
		rec.env.changes.TakePins()
		rec.loop.live.Repin(rec.repinned)
		rec.loop.unmanagedFiles = rec.loop.live.UnmanagedFiles()
	}
	rec.unmanagedFiles = rec.loop.unmanagedFiles
}

// repinned notes that a pin was made again, or could not be.
func (rec *reconcile) repinned(what string, made bool, err error) {
	switch {
	case err != nil:
		rec.env.opts.Log.Error("pin again", "what", what, "error", err)
	case made:
		rec.env.opts.Observer.Healed(Unpinned)
		rec.env.opts.Log.Warn("pinned again what was removed", "what", what)
	}
}

// finish writes what the reconcile found out back, and wakes who waits for it.
func (rec *reconcile) finish() {
	if rec.left {
		rec.loop.namespaces.Close()
		if !rec.seen.IsIncremental() {
			rec.env.changes.AskFull()
		}
		return
	}
	rec.loop.wholeAt = rec.env.opts.Clock()
	if rec.observed {
		rec.seen.Keep()
	}
	// Last of all, when the status says what is attached.
	defer rec.env.starts.Finish(starts.Round{Decisions: rec.decisions, Open: rec.look.Open, Containers: rec.seen.Pods.Snapshot, Loads: rec.loadRound})
	ended := finish.New(finish.Options{Log: rec.env.opts.Log, Node: rec.env.opts.Node, BackOff: rec.env.opts.BackOff, Intents: rec.intents,
		Decisions: rec.decisions, Look: rec.look, Positions: rec.positions, UnmanagedFiles: rec.unmanagedFiles})
	ended.Applications()
	rec.publishMetrics()
	publishes := rec.observed && rec.loop.readers.Publish(rec.intents.Applications, rec.look, rec.decisions.IsGone)
	rec.loop.conflicts.Sweep(rec.decisions.Now)
	rec.lookupRound.End()
	rec.loop.namespaces.Close()
	if err := rec.intents.Prune(rec.objectRound.Cache); err != nil {
		rec.env.opts.Log.Error("drop cached objects", "error", err)
	}
	orphans := ended.Orphans()
	if rec.lookupRound.IsLeft() {
		rec.env.changes.Signal()
	}
	if rec.decisions.Again {
		rec.env.changes.Signal()
	}
	rec.intents.Finish(accepted.Findings{Outcomes: rec.decisions.Outcomes, Orphans: orphans, Observed: rec.observed, Unsettled: publishes,
		Shares: rec.versions.Shares()})
}
