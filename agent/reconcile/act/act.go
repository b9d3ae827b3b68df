// Package act does what was planned: it alone changes links and chains, and it alone ends
// them. Links that the kernel may take long to make are made beside the loop. It does the actions
// in their order, takes chains that were loaded, and notes how each action went. It forgets nothing
// before the kernel and the BPF file system confirmed that it is gone.
package act

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/program/usdt"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// Actor does the actions of one reconcile.
type Actor struct {
	Log      *slog.Logger
	Clock    func() time.Time
	Now      time.Time
	Observer Observer
	Pins     *pins.Store
	// Decisions say what was planned for, and are told how it went.
	Decisions *decide.Decisions
	Look      *live.Look
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
	// ended are the links and chains that End was about.
	ended map[place]bool
	// stuck are the applications of which an action was not done.
	stuck map[string]bool
	// failed are the targets that a version could not be attached to.
	failed map[asked]string
	// late are the owners for whose links this reconcile waits no more, and waited is how long it
	// waited in vain for those of all.
	late   map[string]bool
	waited time.Duration
	// Ending reports that the kernel has yet to end links that were closed, and Making that it has
	// yet to make links which this reconcile began. The end of each of those wakes the loop.
	Ending, Making bool
}

// End ends what is to leave nothing behind, before anything else is decided or done, and forgets nothing that
// the kernel did not confirm: first what a write of maps ends, at once, then by the actions. Act does none
// of these again.
func (act *Actor) End(actions []plan.Action) {
	act.begin()
	gone := plan.SetOf(act.Decisions.Want.Gone)
	isGone := func(uid string) bool { return gone[uid] }
	if err := act.Look.Set.SwitchOff(isGone); err != nil {
		act.Log.Error("switch off what is to go; its links are closed still", "error", err)
	}
	todo := slices.DeleteFunc(slices.Clone(actions), act.wasEnded)
	for _, a := range todo {
		act.ended[placeOf(a)] = true
	}
	act.spend(todo)
	act.Look.ForgetEnded(isGone)
}

// begin begins to keep what the actions of a reconcile have in common.
func (act *Actor) begin() {
	if act.stuck == nil {
		act.stuck, act.failed, act.late, act.ended = map[string]bool{}, map[asked]string{}, map[string]bool{}, map[place]bool{}
	}
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
	act.begin()
	maps.Copy(act.stuck, act.incomplete())
	if len(act.ended) > 0 {
		actions = slices.DeleteFunc(slices.Clone(actions), act.wasEnded)
	}
	begin := slices.IndexFunc(actions, func(a plan.Action) bool { return !act.ends(a) })
	if begin < 0 {
		begin = len(actions)
	}
	act.spend(actions[:begin])
	starts, ends := split(actions[begin:], func(a plan.Action) bool { return !act.ends(a) })
	if len(starts) > 0 {
		// Only after what ends something: this reads objects.
		act.carryVariables()
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

// asked is what a definition asks for, wherever that is found.
type asked struct {
	uid, program, hook string
	target             plan.Target
}

func askedBy(a plan.Action) asked {
	return asked{a.UID, a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target.Asked()}
}

// replacementFailed reports whether a link that is to go is of the version that is wanted,
// and could not be attached to what is found now in the place of the link's target.
func (act *Actor) replacementFailed(a plan.Action) bool {
	revision, failed := act.failed[askedBy(a)]
	return failed && revision == a.Revision
}

// ends reports whether an action starts nothing.
func (act *Actor) ends(a plan.Action) bool {
	switch a.Verb {
	case plan.Detach, plan.Drop, plan.Forget:
		return true
	case plan.SetChain:
		return len(plan.Changed(a.Members, act.Look.Set.GivenTo(a.Device))) == 0
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
	members := slices.Clone(a.Members)
	if c := act.Look.Set.Chains[a.Device]; c != nil && c.Version != nil {
		members = append(members, c.Version.Members...)
	}
	return plan.UIDsOf(members)
}

// runsYet reports whether a chain runs what is to be dropped.
func (act *Actor) runsYet(a plan.Action) bool {
	return slices.ContainsFunc(act.Look.Set.Members(a.UID), func(m plan.Member) bool {
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
	for _, uid := range owners {
		act.note(uid, a, err)
	}
	return err
}

// makeReady fails where an action is not to be done now. It logs and counts one that is, once:
// what is under way goes on.
func (act *Actor) makeReady(a plan.Action) error {
	if act.making(a) != nil {
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
	if m := act.making(a); m != nil {
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
	for _, uid := range owners {
		if out := act.Decisions.Outcomes[uid]; out != nil && lately != nil {
			out.Fail(uid, a, lately)
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
		out.Fail(uid, a, err)
		if wait := new(retry.ConflictError); errors.As(err, &wait) {
			return
		}
		if unanswered := new(targets.UnansweredError); errors.As(err, &unanswered) {
			out.Unsettled = out.Unsettled || !unanswered.Late
			return
		}
		out.Tried = true
		act.Log.Error("act", "application", act.named(a), "action", a.String(), "error", err)
	}
	if a.Verb != plan.SetChain {
		act.Decisions.NoteAction(uid, a.String(), err)
	}
}

func (act *Actor) do(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap:
		return act.attach(a)
	case plan.Update:
		return act.update(a)
	case plan.Move:
		return act.move(a)
	case plan.SetChain:
		return act.setChain(a)
	case plan.Detach:
		return act.detach(a)
	case plan.Drop:
		return act.drop(a)
	case plan.Forget:
		return act.Look.Set.Forget(a.UID)
	}
	return fmt.Errorf("do %s: no such action", a)
}

// attach makes a link and lets the one go that it stands in for.
func (act *Actor) attach(a plan.Action) error {
	program, err := act.programOf(a)
	if err != nil {
		return err
	}
	return act.attachProgram(a, program)
}

func (act *Actor) attachProgram(a plan.Action, program *ebpf.Program) error {
	make := act.makeLink
	if attach.TakesLong(a.Attachment.Hook) {
		make = act.makeBeside
	}
	l, spec, err := make(a, program)
	if err != nil {
		return err
	}
	if err := act.putLink(a.UID, a.Attachment, spec, l); err != nil {
		return err
	}
	if old := act.Look.Set.Links[a.UID][a.Replaces]; old != nil {
		return act.Look.Set.DetachReplaced(old, act.Look.Facts(old.Path, old.Link), act.Now)
	}
	return nil
}

// makeLink makes a link that the kernel makes at once, and returns its SpecID.
func (act *Actor) makeLink(a plan.Action, program *ebpf.Program) (pins.Held, uint32, error) {
	request, err := act.request(a, program)
	if err != nil {
		return nil, 0, err
	}
	defer request.Found.Close()
	l, err := attach.To(request)
	if held := act.holder(a); held != nil && errors.Is(err, unix.EBUSY) {
		l, err = act.takePlace(request, held)
	}
	return l, request.SpecID, err
}

// request is that for the link of an action. The caller closes what was Found.
func (act *Actor) request(a plan.Action, program *ebpf.Program) (attach.Request, error) {
	target, err := act.LookupRound.Find(a.Attachment)
	if err != nil {
		return attach.Request{}, err
	}
	return attach.Request{UID: a.UID, Attachment: a.Attachment, Program: program, Host: act.LookupRound.Host(), Found: target, Neighbours: act.neighbours(a),
		Filters: act.Pins.Filters,
		Specs:   act.Look.Set.Revisions[a.UID][a.Revision].Maps[usdt.SpecsMap], SpecID: act.Look.Set.SpecID(a.UID, a.Attachment.Target),
		HeldBy: act.heldBy(a)}, nil
}

// putLink pins a link and lets the one go that it stands in for. A link that cannot be
// pinned is detached.
func (act *Actor) putLink(uid string, at plan.Attachment, spec uint32, l pins.Held) error {
	old := act.Look.Set.Links[uid][at.Key()]
	var facts pins.Facts
	if old != nil {
		facts = act.Look.Facts(old.Path, old.Link)
	}
	pinned, err := act.Pins.PinLink(uid, at, spec, l)
	if err != nil {
		pins.Sever(l)
		return errors.Join(err, l.Close())
	}
	act.Look.Set.PutLink(pinned)
	act.Look.Changed(pinned.Path)
	if _, isFilter := l.(*clsact.Filter); old != nil && isFilter {
		// The old one was taken away when the new one was made.
		act.Look.Set.Release("replaced filter", old)
	} else if old != nil {
		act.Look.Set.Replace(old, facts, act.Now)
	}
	return nil
}

func (act *Actor) programOf(a plan.Action) (*ebpf.Program, error) {
	r := act.Look.Set.Revisions[a.UID][a.Revision]
	if r == nil || r.Programs[a.Attachment.Instance] == nil {
		return nil, fmt.Errorf("attach %s: revision %s of it is not in the kernel", a.Attachment.Instance, a.Revision)
	}
	return r.Programs[a.Attachment.Instance], nil
}

// neighbours are our links on the same ordered hook and interface.
func (act *Actor) neighbours(a plan.Action) attach.Neighbours {
	var n attach.Neighbours
	if h, ok := hook.Lookup(a.Attachment.Hook); !ok || !h.TakesPriority() {
		return n
	}
	for uid, links := range act.Look.Set.Links {
		for _, l := range links {
			at := l.Attachment
			if at.Hook != a.Attachment.Hook || at.Target.Device() != a.Attachment.Target.Device() || uid == a.UID && at.Key() == a.Attachment.Key() {
				continue
			}
			isBefore := cmp.Or(plan.Compare(at, a.Attachment), cmp.Compare(uid, a.UID)) < 0
			if f, ok := l.Link.(*clsact.Filter); ok && isBefore {
				n.FiltersBefore = append(n.FiltersBefore, f)
			} else if ok {
				n.FiltersAfter = append(n.FiltersAfter, f)
			} else if id := act.Look.Facts(l.Path, l.Link).ID; isBefore {
				n.Before = append(n.Before, id)
			} else {
				n.After = append(n.After, id)
			}
		}
	}
	return n
}

// move gives a link another place on its hook: a second copy runs there before
// the first one goes, since the kernel moves none.
func (act *Actor) move(a plan.Action) error {
	if _, err := act.programOf(a); err != nil {
		return err
	}
	r := act.Look.Set.Revisions[a.UID][a.Revision]
	for _, program := range r.Copies(a.Attachment.Instance) {
		err := act.attachProgram(a, program)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	program, err := act.copyOf(r, a)
	if err != nil {
		return err
	}
	return act.attachProgram(a, program)
}

// update swaps the program under a link that stays.
func (act *Actor) update(a plan.Action) error {
	l := act.Look.Set.Links[a.UID][cmp.Or(a.Replaces, a.Attachment.Key())]
	program, err := act.programOf(a)
	if err != nil {
		return err
	}
	if err := swap(l.Link, program); isUnusable(err) {
		return act.attach(a)
	} else if err != nil {
		return fmt.Errorf("update %s on %s %s: %w", a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target, err)
	}
	if a.Replaces != "" {
		return act.Look.Move(l, a.Attachment)
	}
	before := l.Attachment
	l.Attachment = a.Attachment
	if err := act.Pins.Renew(l); err != nil {
		l.Attachment = before
		return err
	}
	act.Look.Changed(l.Path)
	return nil
}

// swap puts the program under the link, unless it is there.
func swap(l pins.Held, program *ebpf.Program) error {
	facts, err := pins.Inspect(l)
	if err != nil {
		return err
	}
	id, err := pins.ProgramID(program)
	if err != nil {
		return err
	}
	if facts.Program == id && !facts.Severed && facts.Filter.Copies < 2 {
		return nil
	}
	return l.Update(program)
}

// isUnusable tells of a link that cannot run a program any more, or never could:
// somebody else's under our name. Another is made in its place.
func isUnusable(err error) bool {
	return errors.Is(err, unix.ENOLINK) || errors.Is(err, link.ErrNotSupported)
}

// setChain gives an interface's link the program of the members.
func (act *Actor) setChain(a plan.Action) error {
	c := act.Look.Set.Chains[a.Device]
	if len(a.Members) == 0 {
		if err := act.Pins.RemoveChain(c); err != nil {
			return err
		}
		delete(act.Look.Set.Chains, a.Device)
		return nil
	}
	v, err := act.versionOf(a, c)
	if err != nil {
		return err
	}
	if err := act.runVersion(a, v, c); err != nil {
		if c = act.Look.Set.Chains[a.Device]; c == nil || c.Version != v {
			act.Look.Set.Release("chain that was not attached", v)
		}
		return err
	}
	// Who waited for this one is next.
	act.Decisions.Again = act.Decisions.Again || act.Chains.HasWaiting(a.Device)
	return act.dropFormer(act.Look.Set.Chains[a.Device])
}

// runVersion pins a version and has the interface's link run it.
func (act *Actor) runVersion(a plan.Action, v *pins.ChainVersion, c *pins.Chain) error {
	if err := act.Pins.PinChainVersion(a.Device, v); err != nil {
		return err
	}
	if c == nil {
		return act.attachChain(a, v, nil)
	}
	if mode := plan.ModeOf(a.Members); mode != "" && c.Mode != "" && mode != c.Mode {
		return act.changeMode(a, v, c)
	}
	err := swap(c.Link, v.Program)
	if isUnusable(err) {
		return act.attachChain(a, v, c)
	}
	if err != nil {
		return fmt.Errorf("update chain of %s: %w", a.Interface, err)
	}
	act.takeVersion(c, v)
	return nil
}

// dropFormer removes the pins of the versions that an interface's link does not
// run any more.
func (act *Actor) dropFormer(c *pins.Chain) error {
	if err := act.Pins.DropChainVersions(c); err != nil {
		return err
	}
	c.Former = nil
	return nil
}

// versionOf returns the chain that was loaded for the action, or the one that
// runs, where only its link is to be made anew.
func (act *Actor) versionOf(a plan.Action, c *pins.Chain) (*pins.ChainVersion, error) {
	if v := act.Chains.Take(a.Device, a.Members); v != nil {
		return v, nil
	}
	if c != nil && c.Version != nil && slices.Equal(c.Version.Members, a.Members) {
		return c.Version, nil
	}
	return act.Chains.Load(a.Device, a.Members)
}

func (act *Actor) takeVersion(c *pins.Chain, v *pins.ChainVersion) {
	if c.Version != nil && c.Version != v {
		c.Former = append(c.Former, c.Version.Members...)
		act.Look.Set.Release("replaced chain", c.Version)
	}
	c.Version = v
}

// changeMode has an interface run a version in another mode. The kernel runs XDP in one mode at a
// time, so that packets pass unseen for a moment. Where the new mode cannot be had, the former
// version comes back.
func (act *Actor) changeMode(a plan.Action, v *pins.ChainVersion, c *pins.Chain) error {
	former, mode := c.Version, c.Mode
	pins.Sever(c.Link)
	err := act.attachChain(a, v, c)
	if err == nil || former == nil {
		return err
	}
	back := plan.Action{Verb: plan.SetChain, Device: a.Device, Interface: a.Interface, Members: former.Members}
	err = errors.Join(err, act.attachChainAs(mode, back, former, c))
	// What was pinned of the new version is removed with former ones.
	c = act.Look.Set.Chains[a.Device]
	c.Former = append(c.Former, v.Members...)
	return err
}

func (act *Actor) attachChain(a plan.Action, v *pins.ChainVersion, old *pins.Chain) error {
	return act.attachChainAs(plan.ModeOf(a.Members), a, v, old)
}

// attachChainAs attaches a version in a mode, and pins the link in the place of the old one.
func (act *Actor) attachChainAs(mode v1alpha1.XDPMode, a plan.Action, v *pins.ChainVersion, old *pins.Chain) error {
	on, fallback := act.targetOf(a), ""
	l, err := attach.To(attach.Request{Program: v.Program, Host: act.LookupRound.Host(),
		Attachment: plan.Attachment{Program: describeMembers(a.Members), Hook: plan.XDP, XDPMode: mode, Target: on},
		Fallback: func(driver *attach.DriverError) {
			fallback = driver.Error()
			act.NoDriver(a.Device, driver)
		}})
	if driver := new(attach.DriverError); errors.As(err, &driver) {
		act.NoDriver(a.Device, driver)
		// The next reconcile goes on without those that need the driver.
		act.Decisions.Again = true
	}
	if err != nil {
		return err
	}
	if err := act.Pins.PinChainLink(on, fallback, l); err != nil {
		return errors.Join(err, l.Close())
	}
	c := &pins.Chain{Device: a.Device, Target: on, Link: l, Version: v, Fallback: fallback}
	if c.Mode, err = attach.XDPModeOf(a.Device, act.LookupRound.Host().Namespaces); err != nil {
		act.Log.Warn("look how an interface runs XDP", "interface", a.Interface, "error", err)
	}
	if old != nil {
		c.Former = old.Former
		if old.Version == v {
			old.Version = nil
		} else if old.Version != nil {
			c.Former = append(c.Former, old.Version.Members...)
		}
		act.Look.Set.Release("severed chain", old)
	}
	act.Look.Set.Chains[a.Device] = c
	act.Look.Changed(act.Pins.ChainPath(a.Device))
	return nil
}

// targetOf is the interface of an action on a chain.
func (act *Actor) targetOf(a plan.Action) plan.Target {
	i := act.Look.Interface(a.Device)
	return plan.Target{Ifindex: i.Device.Index, Interface: i.Name, NetnsID: i.Device.NetnsID, In: i.In}
}

func describeMembers(members []plan.Member) string {
	if len(members) == 1 {
		return members[0].Program
	}
	return fmt.Sprintf("a chain of %d programs", len(members))
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
