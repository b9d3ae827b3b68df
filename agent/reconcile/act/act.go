// Package act does what was planned: it alone changes links and chains, and it alone ends
// them. Links that the kernel may take long to make are made beside the loop. It does the actions
// in their order, takes chains that were loaded, and notes how each action went. It forgets nothing
// before the kernel and the BPF file system confirmed that it is gone.
package act

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/position"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/retry"
)

// Options are what the actions of one reconcile need.
type Options struct {
	Log      *slog.Logger
	Clock    func() time.Time
	Now      time.Time
	Observer Observer
	Pins     *pins.Store
	// Decisions say what was planned for, and are told how it went.
	Decisions *decide.Decisions
	Look      *live.Look
	// Positions are where programs are to run among those of others.
	Positions *position.Round
	// Chains has those that were loaded. Attempts are the actions on chains that failed, and
	// Longest is how long they are at most not tried again.
	Chains   *chainfit.Round
	Attempts *retry.Attempts
	Longest  time.Duration
	// Conflicts are links that were put back.
	Conflicts *retry.Conflicts
	Measured  *admission.Profiles
	// NoDriver is told that the driver of an interface did not take a chain.
	NoDriver    func(plan.Device, *attach.DriverError)
	ObjectRound *objects.Round
	LoadRound   *build.Round
	LookupRound *targets.Round
	// IsHurried reports whether something waits for the next look at the node.
	IsHurried func() bool
}

// Actor does the actions of one reconcile: it chooses their order and their turns, and notes how each went.
type Actor struct {
	*Options
	// links makes links, and chains sets those of interfaces; ender takes away, and variables come along.
	links     *linkMaker
	chains    *chainSetter
	ender     *ender
	variables *variables
	// ended are the links and chains that End was about, and unswitched says by UID what could not be switched off.
	ended      map[place]bool
	unswitched map[string]error
	// stuck are the applications of which an action was not done.
	stuck map[string]bool
	// freeing: a revision waits to be freed.
	freeing bool
	// failed are the targets that a version could not be attached to.
	failed map[asked]string
}

// New returns an Actor that has done nothing.
func New(o Options) *Actor {
	return &Actor{Options: &o, links: &linkMaker{Options: &o, late: map[string]bool{}}, chains: &chainSetter{&o}, ender: &ender{Options: &o},
		variables: &variables{&o}, ended: map[place]bool{}, stuck: map[string]bool{}, failed: map[asked]string{}}
}

// IsEnding reports whether the kernel has yet to end links that were closed, and IsMaking whether it has yet to
// make links which this reconcile began. The end of each of those wakes the loop.
func (act *Actor) IsEnding() bool { return act.ender.ending }

// IsFreeing reports whether revisions or chains wait until the kernel may free their programs, which the next sweep looks at.
func (act *Actor) IsFreeing() bool { return act.freeing || !act.Look.Set.Unused.IsEmpty() }

// IsMaking is like IsEnding.
func (act *Actor) IsMaking() bool { return act.links.begun }

// SwitchOff ends what a write of maps ends of applications that are gone. FinishUnloads reports what the last call could
// not switch off.
func (act *Actor) SwitchOff(gone []string) {
	act.unswitched = act.Look.Set.SwitchOff(gone)
	for uid, err := range act.unswitched {
		act.Log.Error("switch off; its links are closed still", "application", act.Decisions.NameOf(uid), "error", err)
	}
}

// switchOn has members of chains run again that are asked for.
func (act *Actor) switchOn() {
	for uid, err := range act.Look.Set.SwitchOn(plan.Asked(act.Decisions.Want)) {
		act.Log.Error("switch on members of chains", "application", act.Decisions.NameOf(uid), "error", err)
		out := act.Decisions.Outcome(uid)
		out.Errs = append(out.Errs, fmt.Errorf("let its programs run again: %w", err))
	}
}

// End ends what is to leave nothing behind, before anything else is decided or done, and forgets nothing that
// the kernel did not confirm: first what a write of maps ends, at once, then by the actions. Act does none
// of these again.
func (act *Actor) End(actions []plan.Action) {
	act.SwitchOff(act.Decisions.Want.Gone)
	ends := slices.DeleteFunc(slices.Clone(actions), act.wasEnded)
	for _, a := range ends {
		act.ended[placeOf(a)] = true
	}
	act.spend(ends)
	act.Look.ForgetEnded(act.Decisions.IsGone)
}

// place is a link, or the chain of a device.
type place struct {
	uid, key string
	device   plan.Device
}

func placeOf(a plan.Action) place {
	if a.Verb == plan.SetChain {
		return place{device: a.Device}
	}
	return place{uid: a.UID, key: a.Attachment.Key()}
}

// wasEnded reports whether End was about what an action ends.
func (act *Actor) wasEnded(a plan.Action) bool {
	return (a.Verb == plan.Detach || a.Verb == plan.SetChain && len(a.Members) == 0) && act.ended[placeOf(a)]
}

// Act does the actions: first those that only end something, then what puts back what
// somebody else changed, then the others. Each of these takes a bounded time, in which the
// applications take turns; the next reconcile goes on, after it looked for what is to end
// by then. One that fails stops no other, but keeps what its application runs from being
// dropped, and links of the version before from being detached.
func (act *Actor) Act(actions []plan.Action) {
	maps.Copy(act.stuck, act.incomplete())
	if len(act.ended) > 0 {
		actions = slices.DeleteFunc(slices.Clone(actions), act.wasEnded)
	}
	begin := slices.IndexFunc(actions, func(a plan.Action) bool { return !act.ends(a) })
	if begin < 0 {
		begin = len(actions)
	}
	act.spend(actions[:begin])
	act.switchOn()
	act.switchLeaving(act.Decisions.Leaving)
	starts, ends := split(actions[begin:], func(a plan.Action) bool { return !act.ends(a) })
	if len(starts) > 0 {
		// Only after what ends something: this reads objects.
		act.variables.carryVariables()
	}
	healing, others := split(starts, func(a plan.Action) bool {
		_, drift := act.drifted(a)
		return drift != ""
	})
	act.spend(healing)
	act.spend(others)
	act.spend(ends)
}

// one does an action, unless what its application has to keep forbids that.
func (act *Actor) one(a plan.Action) {
	if (a.Verb == plan.Drop || a.Verb == plan.Forget) && (act.stuck[a.UID] || act.runsYet(a) || act.Decisions.Awaited[[2]string{a.UID, a.Revision}]) {
		return
	}
	if a.Verb == plan.Detach && (act.stuck[a.UID] && act.standsIn(a.UID, a.Revision) || act.replacementFailed(a)) {
		return
	}
	owners := act.owners(a)
	err := act.backedOff(owners, a)
	if err == nil {
		err = act.try(owners, a)
	}
	if err != nil {
		act.stick(owners, a)
	}
}

// switchLeaving switches off what is to leave chains that could not be changed, but for what stays as it is by now.
func (act *Actor) switchLeaving(leaving map[plan.Device][]plan.Member) {
	off := make(map[plan.Device][]plan.Member, len(leaving))
	for device, members := range leaving {
		off[device] = slices.DeleteFunc(slices.Clone(members), func(m plan.Member) bool { return act.Decisions.IsFrozen(m.UID) })
	}
	for uid, err := range act.Look.Set.SwitchOffMembers(off) {
		act.Log.Error("switch off what leaves a chain", "application", act.Decisions.NameOf(uid), "error", err)
	}
}

// endWithdrawn ends what runs in the place of an action that failed, and may not run beside the newest intent. It waits for
// nothing that is to take its place, unless that is on its way.
func (act *Actor) endWithdrawn(a plan.Action, err error) {
	making, unanswered := new(MakingError), new(targets.UnansweredError)
	if decide.IsPending(err) || errors.As(err, &making) && !making.late || errors.As(err, &unanswered) && !unanswered.Late {
		return
	}
	if a.Verb == plan.SetChain {
		act.switchLeaving(map[plan.Device][]plan.Member{a.Device: decide.LeavingOf(act.Decisions, a.Device, a.Members, act.Look.GivenTo(a.Device))})
		return
	}
	for _, key := range []string{a.Attachment.Key(), a.Replaces} {
		l := act.Look.Link(a.UID, key)
		if l == nil || a.Verb == plan.Detach {
			continue
		}
		if runs := act.Look.RevisionOf(l, act.Look.Facts(l)); runs != "" && act.Decisions.Withdrew(a.UID, runs) {
			act.one(plan.Action{Verb: plan.Detach, UID: a.UID, Revision: runs, Attachment: l.Attachment})
		}
	}
}

// stick notes that an action was not done.
func (act *Actor) stick(owners []string, a plan.Action) {
	for _, uid := range owners {
		act.stuck[uid] = true
	}
	act.failed[askedBy(a)] = a.Revision
}

// owners are the applications that an action is about.
func (act *Actor) owners(a plan.Action) []string {
	if a.Verb == plan.SetChain {
		return act.concerned(a)
	}
	return []string{a.UID}
}

// asked is what a definition asks for, wherever that is found. Of cgroups in a pod it is the pod: what was attached
// to that one may be attached to those of its containers now.
type asked struct {
	uid, program, hook string
	target             plan.Target
}

func askedBy(a plan.Action) asked {
	t := a.Attachment.Target.Asked()
	if t.Cgroup != "" && t.In != "" {
		t.Cgroup, t.CgroupID = "", 0
		t.In, _, _ = strings.Cut(t.In, plan.InContainer)
	}
	return asked{a.UID, a.Attachment.Program, a.Attachment.Hook, t}
}

// replacementFailed reports whether a link that is to go is of the version that is wanted, or of what was loaded of it
// before, and could not be attached to what is found now in the place of the link's target.
func (act *Actor) replacementFailed(a plan.Action) bool {
	revision, failed := act.failed[askedBy(a)]
	return failed && (revision == a.Revision || a.Revision == "")
}

// ends reports whether an action starts nothing.
func (act *Actor) ends(a plan.Action) bool {
	switch a.Verb {
	case plan.Detach, plan.Drop, plan.Forget:
		return true
	case plan.SetChain:
		return len(plan.Changed(a.Members, act.Look.GivenTo(a.Device))) == 0
	}
	return false
}

// incomplete are the applications whose newest version lacks a target that is to
// be there, and was never whole here.
func (act *Actor) incomplete() map[string]bool {
	all := map[string]bool{}
	for _, app := range act.Decisions.Applications {
		uid := app.Newest.Payload().UID
		if len(act.Decisions.Outcomes[uid].Errs) > 0 && act.Decisions.IsUnproven(uid) {
			all[uid] = true
		}
	}
	return all
}

// standsIn reports whether links of a revision stay until the newest version is
// whole here: in a cluster where the intent names it, and it is for this node. The
// newest version's bytes at other places than it has are no longer its own.
func (act *Actor) standsIn(uid, revision string) bool {
	if !act.Decisions.IsUnproven(uid) || act.Decisions.Node.Name == "" {
		return act.Decisions.IsUnproven(uid)
	}
	return slices.ContainsFunc(act.Decisions.Application(uid).Newest.Names(revision), act.Decisions.Node.MayHave)
}

// concerned are the applications that a chain has and those that it is to have.
func (act *Actor) concerned(a plan.Action) []string {
	return plan.UIDsOf(slices.Concat(a.Members, act.Look.GivenTo(a.Device)))
}

// runsYet reports whether a chain runs what is to be dropped.
func (act *Actor) runsYet(a plan.Action) bool {
	return slices.ContainsFunc(act.Look.Members(a.UID), func(m plan.Member) bool {
		return a.Verb == plan.Forget || m.Revision == a.Revision
	})
}

// named says which applications an action is about, by their names; by the UID of one
// that is not known any more.
func (act *Actor) named(a plan.Action) string {
	uids := []string{a.UID}
	if a.Verb == plan.SetChain {
		uids = nil
		for _, m := range a.Members {
			uids = append(uids, m.UID)
		}
	}
	names := make([]string, len(uids))
	for i, uid := range uids {
		names[i] = act.Decisions.NameOf(uid)
	}
	return strings.Join(names, ", ")
}

// try does an action and notes how it went.
func (act *Actor) try(owners []string, a plan.Action) error {
	err := act.makeReady(a)
	if err == nil {
		err = act.timed(a)
	}
	// What runs in its place already is not to be dropped under it.
	if a.Verb == plan.Attach && a.Attachment.Optional && report.IsAbsent(err) {
		act.Decisions.Outcome(a.UID).Fail(a.UID, a, err)
		act.failed[askedBy(a)] = a.Revision
		return nil
	}
	act.noteChain(a, err)
	if err != nil {
		owners = act.affected(owners, a)
	}
	if a.Verb == plan.SetChain && err != nil && !decide.IsPending(err) && act.Chains.LeavesOut(a) {
		act.Log.Warn("go on with a part of the chain", "application", act.named(a), "action", a.String(), "error", err)
		act.Decisions.Again, err = true, &decide.QueuedError{Why: "the next reconcile continues with a part of the chain"}
	}
	if err != nil {
		act.endWithdrawn(a, err)
		act.Chains.Waiting.Fail(a.Device, err)
	}
	for _, uid := range owners {
		act.note(uid, a, err)
	}
	return err
}

// affected are the owners of an action that failed for whom that matters: what a chain runs still, as it is to run, it
// runs, whichever others should join or leave.
func (act *Actor) affected(owners []string, a plan.Action) []string {
	c, seen := act.Look.Chain(a.Device), act.Look.SeenChain(a.Device)
	if a.Verb != plan.SetChain || c == nil || c.Version == nil || seen == nil || !slices.Equal(seen.Members, c.Version.Members) {
		return owners
	}
	if facts, err := pins.Inspect(c.Link); err != nil || facts.Severed {
		return owners
	}
	changes := append(plan.Changed(a.Members, c.Version.Members), plan.Leavers(a.Members, c.Version.Members)...)
	if len(changes) == 0 {
		return owners
	}
	return changes
}

// makeReady fails where an action is not to be done now. It logs and counts one that is, once:
// what is under way goes on.
func (act *Actor) makeReady(a plan.Action) error {
	if act.links.making(a) != nil {
		return nil
	}
	if err := act.awaitTarget(a); err != nil {
		return err
	}
	if err := act.heal(a); err != nil {
		return err
	}
	act.Log.Info("act", "application", act.named(a), "action", a.String())
	return nil
}

// awaitTarget fails with a *targets.UnansweredError while the target of an action is not
// found.
func (act *Actor) awaitTarget(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap, plan.Move:
		return act.LookupRound.Await(a.Attachment)
	case plan.Update, plan.SetChain, plan.Detach, plan.Drop, plan.Forget:
	}
	return nil
}

// timed does an action, and tells how long it took and what it healed.
func (act *Actor) timed(a plan.Action) error {
	_, drift := act.drifted(a)
	began := act.Clock()
	if m := act.links.making(a); m != nil {
		began = m.Since
	}
	err := act.do(a)
	if errors.As(err, new(*MakingError)) {
		return err
	}
	if hook := attaches(a); hook != "" {
		act.Observer.Attached(hook, act.Clock().Sub(began), err)
	}
	if drift != "" && err == nil {
		act.Observer.Healed(drift)
	}
	return err
}

// backedOff returns the error of an action that failed a short while ago, and notes
// it for its owners: it is not tried for any of them.
func (act *Actor) backedOff(owners []string, a plan.Action) error {
	lately := act.failedLately(a)
	if lately == nil {
		return nil
	}
	act.endWithdrawn(a, lately)
	act.Chains.Waiting.Fail(a.Device, lately)
	for _, uid := range act.affected(owners, a) {
		if out := act.Decisions.Outcomes[uid]; out != nil {
			out.Fail(uid, a, decide.Told(act.Decisions, uid, lately))
		}
	}
	return lately
}

// failedLately returns the error of an action that is not to be tried again yet.
func (act *Actor) failedLately(a plan.Action) error {
	if a.Verb == plan.SetChain {
		return act.Attempts.Last(a.String(), act.Now, act.Longest)
	}
	return act.Decisions.FailedLately(a.UID, a.String())
}

// note remembers how an action went.
func (act *Actor) note(uid string, a plan.Action, err error) {
	if err != nil {
		out := act.Decisions.Outcome(uid)
		if making := new(MakingError); errors.As(err, &making) {
			act.noteMaking(uid, a, making)
			return
		}
		if decide.IsPending(err) {
			act.Decisions.NotePending(uid, err)
			return
		}
		out.Fail(uid, a, decide.Told(act.Decisions, uid, err))
		if wait := new(retry.ConflictError); errors.As(err, &wait) {
			return
		}
		if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
			if !unanswered.Late {
				out.Leave(report.Answer{})
			}
			return
		}
		out.Leave(report.Retry{})
		act.Log.Error("act", "application", act.named(a), "action", a.String(), "error", err)
	}
	if a.Verb != plan.SetChain {
		act.Decisions.NoteAction(uid, a.String(), err)
	}
}

func (act *Actor) do(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap:
		return act.links.attach(a)
	case plan.Update:
		return act.links.update(a)
	case plan.Move:
		return act.links.move(a)
	case plan.SetChain:
		return act.chains.setChain(a)
	case plan.Detach:
		return act.ender.detach(a)
	case plan.Drop:
		return act.ender.drop(a)
	case plan.Forget:
		return act.Look.Set.Forget(a.UID)
	}
	return fmt.Errorf("do %s: no such action", a)
}

// noteChain remembers how an action on a chain went.
func (act *Actor) noteChain(a plan.Action, err error) {
	if a.Verb != plan.SetChain || decide.IsPending(err) {
		return
	}
	if wait := new(retry.ConflictError); err == nil || errors.As(err, &wait) {
		// Who is contested says when it is tried again.
		act.Attempts.Forget(a.String())
		return
	}
	act.Attempts.Failed(a.String(), act.Now, err)
}

// attaches names the hook that an action attaches a program to; empty where it
// attaches none.
func attaches(a plan.Action) string {
	switch a.Verb {
	case plan.Attach, plan.Update, plan.Overlap, plan.Move:
		return a.Attachment.Hook
	case plan.SetChain:
		if len(a.Members) > 0 {
			return plan.XDP
		}
	case plan.Detach, plan.Drop, plan.Forget:
	}
	return ""
}
