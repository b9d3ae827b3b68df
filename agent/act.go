package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/retry"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/hook"
)

// act does the actions in order. One that fails stops no other, but keeps what
// its application runs from being dropped, and links of the version before from
// being detached.
func (rec *reconcile) act(actions []plan.Action) {
	stuck, carried := rec.incomplete(), false
	for _, a := range actions {
		if !carried && !rec.ends(a) {
			// Only after what ends something: this reads objects.
			rec.carryVariables()
			carried = true
		}
		owners := []string{a.UID}
		if a.Verb == plan.SetChain {
			owners = rec.concerned(a)
		}
		if (a.Verb == plan.Drop || a.Verb == plan.Forget) && (stuck[a.UID] || rec.runsYet(a) || rec.awaited[[2]string{a.UID, a.Revision}]) {
			continue
		}
		if a.Verb == plan.Detach && stuck[a.UID] && rec.standsIn(a.UID, a.Revision) {
			continue
		}
		err := rec.backedOff(owners, a)
		if err == nil {
			err = rec.try(owners, a)
		}
		if err != nil {
			for _, uid := range owners {
				stuck[uid] = true
			}
		}
	}
}

// ends reports whether an action starts nothing.
func (rec *reconcile) ends(a plan.Action) bool {
	switch a.Verb {
	case plan.Detach, plan.Drop, plan.Forget:
		return true
	case plan.SetChain:
		return len(plan.Changed(a.Members, rec.live.GivenTo(a.Ifindex))) == 0
	}
	return false
}

// incomplete are the applications whose newest version lacks a target that is to
// be there, and was never whole here.
func (rec *reconcile) incomplete() map[string]bool {
	all := map[string]bool{}
	for _, app := range rec.apps {
		uid := app.Newest.Payload().UID
		all[uid] = len(rec.outcomes[uid].Errs) > 0 && rec.unproven(uid)
	}
	return all
}

// standsIn reports whether links of a revision stay until the newest version is
// whole here: in a cluster where the intent names it, and it is for this node. The
// newest version's bytes at other places than it has are no longer its own.
func (rec *reconcile) standsIn(uid, revision string) bool {
	if !rec.unproven(uid) || rec.opts.Node == "" {
		return rec.unproven(uid)
	}
	return slices.ContainsFunc(rec.application(uid).Newest.Names(revision), rec.node.MayHave)
}

// concerned are the applications that a chain has and those that it is to have.
func (rec *reconcile) concerned(a plan.Action) []string {
	members := slices.Clone(a.Members)
	if c := rec.live.Chains[a.Ifindex]; c != nil && c.Version != nil {
		members = append(members, c.Version.Members...)
	}
	return plan.UIDsOf(members)
}

// runsYet reports whether a chain runs what is to be dropped.
func (rec *reconcile) runsYet(a plan.Action) bool {
	return slices.ContainsFunc(rec.live.Members(a.UID), func(m plan.Member) bool {
		return a.Verb == plan.Forget || m.Revision == a.Revision
	})
}

// named says which applications an action is about, by their names; by the UID of one
// that is not known any more.
func (rec *reconcile) named(a plan.Action) string {
	uids := []string{a.UID}
	if a.Verb == plan.SetChain {
		uids = nil
		for _, m := range a.Members {
			uids = append(uids, m.UID)
		}
	}
	names := make([]string, len(uids))
	for i, uid := range uids {
		names[i] = rec.nameOf(uid)
	}
	return strings.Join(names, ", ")
}

// try does an action and notes how it went.
func (rec *reconcile) try(owners []string, a plan.Action) error {
	err := rec.awaitTarget(a)
	var drift Drift
	if err == nil {
		drift, err = rec.heal(a)
	}
	if err == nil {
		rec.opts.Log.Info("act", "application", rec.named(a), "action", a.String())
		err = rec.timed(a, drift)
	}
	rec.noteChain(a, err)
	for _, uid := range owners {
		rec.note(uid, a, err)
	}
	return err
}

// awaitTarget fails with a *targets.UnansweredError while the target of an action is not
// found.
func (rec *reconcile) awaitTarget(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap, plan.Move:
		return rec.lookups.Await(a.Attachment)
	case plan.Update, plan.SetChain, plan.Detach, plan.Drop, plan.Forget:
	}
	return nil
}

// timed does an action, and tells how long it took and what it healed.
func (rec *reconcile) timed(a plan.Action, drift Drift) error {
	began := rec.opts.Clock()
	err := rec.do(a)
	if hook := attaches(a); hook != "" {
		rec.opts.Observer.Attached(hook, rec.opts.Clock().Sub(began), err)
	}
	if drift != "" && err == nil {
		rec.opts.Observer.Healed(drift)
	}
	return err
}

// backedOff returns the error of an action that failed a short while ago, and notes
// it for its owners: it is not tried for any of them.
func (rec *reconcile) backedOff(owners []string, a plan.Action) error {
	lately := rec.failedLately(a)
	for _, uid := range owners {
		if out := rec.outcomes[uid]; out != nil && lately != nil {
			out.Fail(uid, a, lately)
		}
	}
	return lately
}

// failedLately returns the error of an action that is not to be tried again yet.
func (rec *reconcile) failedLately(a plan.Action) error {
	if a.Verb == plan.SetChain {
		return rec.chains.attempts.Last(a.String(), rec.now, rec.opts.BackOff.Longest())
	}
	return rec.decisions.failedLately(a.UID, a.String())
}

// note remembers how an action went.
func (rec *reconcile) note(uid string, a plan.Action, err error) {
	if err != nil {
		out := rec.outcome(uid)
		if isPending(err) {
			rec.notePending(uid, err)
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
		rec.opts.Log.Error("act", "application", rec.named(a), "action", a.String(), "error", err)
	}
	if a.Verb != plan.SetChain {
		rec.noteAction(uid, a.String(), err)
	}
}

func (rec *reconcile) do(a plan.Action) error {
	switch a.Verb {
	case plan.Attach:
		return rec.attach(a)
	case plan.Update:
		return rec.update(a)
	case plan.Overlap:
		return rec.attach(a)
	case plan.Move:
		return rec.move(a)
	case plan.SetChain:
		return rec.setChain(a)
	case plan.Detach:
		return rec.detach(a)
	case plan.Drop:
		return rec.drop(a)
	case plan.Forget:
		return rec.live.Forget(a.UID)
	}
	return fmt.Errorf("do %s: no such action", a)
}

// attach makes a link and lets the one go that it stands in for.
func (rec *reconcile) attach(a plan.Action) error {
	program, err := rec.programOf(a)
	if err != nil {
		return err
	}
	return rec.attachProgram(a, program)
}

func (rec *reconcile) attachProgram(a plan.Action, program *ebpf.Program) error {
	old := rec.live.Links[a.UID][a.Attachment.Key()]
	target, err := rec.lookups.Find(a.Attachment)
	if err != nil {
		return err
	}
	defer target.Close()
	l, err := attach.To(attach.Request{Attachment: a.Attachment, Program: program, Found: target, Neighbours: rec.neighbours(a)})
	if err != nil {
		return err
	}
	pinned, err := rec.pins.PinLink(a.UID, a.Attachment, l)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	rec.live.PutLink(pinned)
	rec.look.Changed(pinned.Path)
	if old != nil {
		logClose(rec.opts.Log, "replaced link", old)
	}
	return nil
}

func (rec *reconcile) programOf(a plan.Action) (*ebpf.Program, error) {
	r := rec.live.Revisions[a.UID][a.Revision]
	if r == nil || r.Programs[a.Attachment.Instance] == nil {
		return nil, fmt.Errorf("attach %s: revision %s of it is not in the kernel", a.Attachment.Instance, a.Revision)
	}
	return r.Programs[a.Attachment.Instance], nil
}

// neighbours are our links on the same ordered hook and interface.
func (rec *reconcile) neighbours(a plan.Action) attach.Neighbours {
	var n attach.Neighbours
	if h, ok := hook.Lookup(a.Attachment.Hook); !ok || h.Sharing != hook.Ordered {
		return n
	}
	for uid, links := range rec.live.Links {
		for _, l := range links {
			at := l.Attachment
			if at.Hook != a.Attachment.Hook || at.Ifindex != a.Attachment.Ifindex || uid == a.UID && at.Key() == a.Attachment.Key() {
				continue
			}
			id := rec.look.Facts(l.Path, l.Link).ID
			if cmp.Or(plan.Compare(at, a.Attachment), cmp.Compare(uid, a.UID)) < 0 {
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
func (rec *reconcile) move(a plan.Action) error {
	if _, err := rec.programOf(a); err != nil {
		return err
	}
	r := rec.live.Revisions[a.UID][a.Revision]
	for _, program := range r.Copies(a.Attachment.Instance) {
		err := rec.attachProgram(a, program)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	program, err := rec.copyOf(r, a)
	if err != nil {
		return err
	}
	return rec.attachProgram(a, program)
}

// update swaps the program under a link that stays.
func (rec *reconcile) update(a plan.Action) error {
	l := rec.live.Links[a.UID][a.Attachment.Key()]
	program, err := rec.programOf(a)
	if err != nil {
		return err
	}
	if err := swap(l.Link, program); isUnusable(err) {
		return rec.attach(a)
	} else if err != nil {
		return fmt.Errorf("update %s on %s %s: %w", a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target, err)
	}
	if err := rec.pins.Describe(a.UID, a.Attachment); err != nil {
		return err
	}
	l.Attachment = a.Attachment
	rec.look.Changed(l.Path)
	return nil
}

// swap puts the program under the link, unless it is there.
func swap(l link.Link, program *ebpf.Program) error {
	facts, err := kernel.Inspect(l)
	if err != nil {
		return err
	}
	id, err := kernel.ProgramID(program)
	if err != nil {
		return err
	}
	if facts.Program == id && !facts.Severed {
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
func (rec *reconcile) setChain(a plan.Action) error {
	c := rec.live.Chains[a.Ifindex]
	if len(a.Members) == 0 {
		if err := rec.pins.RemoveChain(c); err != nil {
			return err
		}
		delete(rec.live.Chains, a.Ifindex)
		return nil
	}
	v, err := rec.versionOf(a, c)
	if err != nil {
		return err
	}
	if err := rec.runVersion(a, v, c); err != nil {
		if c = rec.live.Chains[a.Ifindex]; c == nil || c.Version != v {
			logClose(rec.opts.Log, "chain that was not attached", v)
		}
		return err
	}
	// Who waited for this one is next.
	rec.again = rec.again || rec.chains.behind[a.Ifindex]
	return rec.dropFormer(rec.live.Chains[a.Ifindex])
}

// runVersion pins a version and has the interface's link run it.
func (rec *reconcile) runVersion(a plan.Action, v *kernel.ChainVersion, c *kernel.Chain) error {
	if err := rec.pins.PinChainVersion(a.Ifindex, v); err != nil {
		return err
	}
	if c == nil {
		return rec.attachChain(a, v, nil)
	}
	err := swap(c.Link, v.Program)
	if isUnusable(err) {
		return rec.attachChain(a, v, c)
	}
	if err != nil {
		return fmt.Errorf("update chain of %s: %w", a.Interface, err)
	}
	rec.takeVersion(c, v)
	return nil
}

// dropFormer removes the pins of the versions that an interface's link does not
// run any more.
func (rec *reconcile) dropFormer(c *kernel.Chain) error {
	if err := rec.pins.DropChainVersions(c); err != nil {
		return err
	}
	c.Former = nil
	return nil
}

// versionOf returns the chain that was loaded for the action, or the one that
// runs, where only its link is to be made anew.
func (rec *reconcile) versionOf(a plan.Action, c *kernel.Chain) (*kernel.ChainVersion, error) {
	if v := rec.chains.versions[a.Ifindex]; v != nil && slices.Equal(v.Members, a.Members) {
		return rec.chains.takeLoaded(a.Ifindex), nil
	}
	if c != nil && c.Version != nil && slices.Equal(c.Version.Members, a.Members) {
		return c.Version, nil
	}
	key, v, err := rec.chains.load(a.Ifindex, a.Members, nil, "")
	if err == nil {
		rec.loads.Take(key)
	}
	return v, err
}

func (rec *reconcile) takeVersion(c *kernel.Chain, v *kernel.ChainVersion) {
	if c.Version != nil && c.Version != v {
		c.Former = append(c.Former, c.Version.Members...)
		logClose(rec.opts.Log, "replaced chain", c.Version)
	}
	c.Version = v
}

func (rec *reconcile) attachChain(a plan.Action, v *kernel.ChainVersion, old *kernel.Chain) error {
	l, err := attach.To(attach.Request{Program: v.Program,
		Attachment: plan.Attachment{Program: describeMembers(a.Members), Hook: plan.XDP,
			Target: plan.Target{Ifindex: a.Ifindex, Interface: a.Interface}}})
	if err != nil {
		return err
	}
	if err := rec.pins.PinChainLink(a.Ifindex, l); err != nil {
		return errors.Join(err, l.Close())
	}
	c := &kernel.Chain{Ifindex: a.Ifindex, Link: l, Version: v}
	if old != nil {
		c.Former = old.Former
		if old.Version == v {
			old.Version = nil
		} else if old.Version != nil {
			c.Former = append(c.Former, old.Version.Members...)
		}
		logClose(rec.opts.Log, "severed chain", old)
	}
	rec.live.Chains[a.Ifindex] = c
	rec.look.Changed(rec.pins.ChainPath(a.Ifindex))
	return nil
}

func describeMembers(members []plan.Member) string {
	if len(members) == 1 {
		return members[0].Program
	}
	return fmt.Sprintf("a chain of %d programs", len(members))
}

// noteChain remembers how an action on a chain went.
func (rec *reconcile) noteChain(a plan.Action, err error) {
	if a.Verb != plan.SetChain || isPending(err) {
		return
	}
	if wait := new(retry.ConflictError); err == nil || errors.As(err, &wait) {
		// Who is contested says when it is tried again.
		rec.chains.attempts.Forget(a.String())
		return
	}
	rec.chains.attempts.Failed(a.String(), rec.now, err)
}
