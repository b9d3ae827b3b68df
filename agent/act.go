package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/agent/retry"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/hook"
)

// act does the actions in order. One that fails stops no other, but keeps what
// its application runs from being dropped, and links of the version before from
// being detached.
func (p *reconcile) act(actions []plan.Action) {
	stuck, carried := p.incomplete(), false
	for _, a := range actions {
		if !carried && !p.ends(a) {
			// Only after what ends something: this reads objects.
			p.carryVariables()
			carried = true
		}
		owners := []string{a.UID}
		if a.Verb == plan.SetChain {
			owners = p.concerned(a)
		}
		if (a.Verb == plan.Drop || a.Verb == plan.Forget) && (stuck[a.UID] || p.runsYet(a) || p.awaited[[2]string{a.UID, a.Revision}]) {
			continue
		}
		if a.Verb == plan.Detach && stuck[a.UID] && p.standsIn(a.UID, a.Revision) {
			continue
		}
		err := p.backedOff(owners, a)
		if err == nil {
			err = p.try(owners, a)
		}
		if err != nil {
			for _, uid := range owners {
				stuck[uid] = true
			}
		}
	}
}

// ends reports whether an action starts nothing.
func (p *reconcile) ends(a plan.Action) bool {
	switch a.Verb {
	case plan.Detach, plan.Drop, plan.Forget:
		return true
	case plan.SetChain:
		return len(plan.Changed(a.Members, p.live.GivenTo(a.Ifindex))) == 0
	}
	return false
}

// incomplete are the applications whose newest version lacks a target that is to
// be there, and was never whole here.
func (p *reconcile) incomplete() map[string]bool {
	all := map[string]bool{}
	for _, app := range p.apps {
		uid := app.Newest.Payload().UID
		all[uid] = len(p.outcomes[uid].Errs) > 0 && p.unproven(uid)
	}
	return all
}

// unproven reports whether the newest version is to run, and was never whole here
// while another one was.
func (p *reconcile) unproven(uid string) bool {
	app, out := p.applicationOf(uid), p.outcomes[uid]
	return app != nil && out != nil && out.Live == &app.Newest && app.IsUpdate()
}

// standsIn reports whether links of a revision stay until the newest version is
// whole here: in a cluster where the intent names it, and it is for this node. The
// newest version's bytes at other places than it has are no longer its own.
func (p *reconcile) standsIn(uid, revision string) bool {
	if !p.unproven(uid) || p.opts.Node == "" {
		return p.unproven(uid)
	}
	return slices.ContainsFunc(p.applicationOf(uid).Newest.Names(revision), p.node.MayHave)
}

// concerned are the applications that a chain has and those that it is to have.
func (p *reconcile) concerned(a plan.Action) []string {
	members := slices.Clone(a.Members)
	if c := p.live.Chains[a.Ifindex]; c != nil && c.Version != nil {
		members = append(members, c.Version.Members...)
	}
	return plan.UIDsOf(members)
}

// runsYet reports whether a chain runs what is to be dropped.
func (p *reconcile) runsYet(a plan.Action) bool {
	return slices.ContainsFunc(p.live.Members(a.UID), func(m plan.Member) bool {
		return a.Verb == plan.Forget || m.Revision == a.Revision
	})
}

// named says which applications an action is about, by their names; by the UID of one
// that is not known any more.
func (p *reconcile) named(a plan.Action) string {
	uids := []string{a.UID}
	if a.Verb == plan.SetChain {
		uids = nil
		for _, m := range a.Members {
			uids = append(uids, m.UID)
		}
	}
	names := make([]string, len(uids))
	for i, uid := range uids {
		names[i] = p.accepted.nameOf(uid)
	}
	return strings.Join(names, ", ")
}

// try does an action and notes how it went.
func (p *reconcile) try(owners []string, a plan.Action) error {
	err := p.awaitTarget(a)
	var drift Drift
	if err == nil {
		drift, err = p.heal(a)
	}
	if err == nil {
		p.opts.Log.Info("act", "application", p.named(a), "action", a.String())
		err = p.timed(a, drift)
	}
	p.noteChain(a, err)
	for _, uid := range owners {
		p.note(uid, a, err)
	}
	return err
}

// awaitTarget fails with a *targets.UnansweredError while the target of an action is not
// found.
func (p *reconcile) awaitTarget(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap, plan.Move:
		return p.targets.Await(a.Attachment)
	case plan.Update, plan.SetChain, plan.Detach, plan.Drop, plan.Forget:
	}
	return nil
}

// timed does an action, and tells how long it took and what it healed.
func (p *reconcile) timed(a plan.Action, drift Drift) error {
	began := p.opts.Clock()
	err := p.do(a)
	if hook := attaches(a); hook != "" {
		p.opts.Observer.Attached(hook, p.opts.Clock().Sub(began), err)
	}
	if drift != "" && err == nil {
		p.opts.Observer.Healed(drift)
	}
	return err
}

// backedOff returns the error of an action that failed a short while ago, and notes
// it for its owners: it is not tried for any of them.
func (p *reconcile) backedOff(owners []string, a plan.Action) error {
	lately := p.failedLately(a)
	for _, uid := range owners {
		if out := p.outcomes[uid]; out != nil && lately != nil {
			out.Fail(uid, a, lately)
		}
	}
	return lately
}

// failedLately returns the error of an action that is not to be tried again yet.
func (p *reconcile) failedLately(a plan.Action) error {
	if a.Verb == plan.SetChain {
		return p.attempts.Last(a.String(), p.now, p.opts.BackOff.Longest())
	}
	if app := p.applicationOf(a.UID); app != nil && p.now.Before(app.retryAt) {
		return app.failed[a.String()]
	}
	return nil
}

// note remembers how an action went.
func (p *reconcile) note(uid string, a plan.Action, err error) {
	if err != nil {
		out := p.outcomes[uid]
		if out == nil {
			out = &report.Outcome{}
			p.outcomes[uid] = out
		}
		if isPending(err) {
			out.Pending, out.Refused, out.Loading = true, true, errors.Is(err, loads.ErrLoading)
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
		p.opts.Log.Error("act", "application", p.named(a), "action", a.String(), "error", err)
	}
	if app := p.applicationOf(uid); app != nil && a.Verb != plan.SetChain {
		app.failed = maps.Clone(app.failed)
		if app.failed == nil {
			app.failed = map[string]error{}
		}
		app.failed[a.String()] = err
	}
}

func (p *reconcile) do(a plan.Action) error {
	switch a.Verb {
	case plan.Attach:
		return p.attach(a)
	case plan.Update:
		return p.update(a)
	case plan.Overlap:
		return p.attach(a)
	case plan.Move:
		return p.move(a)
	case plan.SetChain:
		return p.setChain(a)
	case plan.Detach:
		return p.detach(a)
	case plan.Drop:
		return p.drop(a)
	case plan.Forget:
		return p.live.Forget(a.UID)
	}
	return fmt.Errorf("do %s: no such action", a)
}

// attach makes a link and lets the one go that it stands in for.
func (p *reconcile) attach(a plan.Action) error {
	program, err := p.programOf(a)
	if err != nil {
		return err
	}
	return p.attachProgram(a, program)
}

func (p *reconcile) attachProgram(a plan.Action, program *ebpf.Program) error {
	old := p.live.Links[a.UID][a.Attachment.Key()]
	target, err := p.targets.Find(a.Attachment)
	if err != nil {
		return err
	}
	defer target.Close()
	l, err := attach.To(attach.Request{Attachment: a.Attachment, Program: program, Found: target, Neighbours: p.neighbours(a)})
	if err != nil {
		return err
	}
	pinned, err := p.pins.PinLink(a.UID, a.Attachment, l)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	p.live.PutLink(pinned)
	p.look.Changed(pinned.Path)
	if old != nil {
		p.logClose("replaced link", old)
	}
	return nil
}

func (p *reconcile) programOf(a plan.Action) (*ebpf.Program, error) {
	r := p.live.Revisions[a.UID][a.Revision]
	if r == nil || r.Programs[a.Attachment.Instance] == nil {
		return nil, fmt.Errorf("attach %s: revision %s of it is not in the kernel", a.Attachment.Instance, a.Revision)
	}
	return r.Programs[a.Attachment.Instance], nil
}

// neighbours are our links on the same ordered hook and interface.
func (p *reconcile) neighbours(a plan.Action) attach.Neighbours {
	var n attach.Neighbours
	if h, ok := hook.Lookup(a.Attachment.Hook); !ok || h.Sharing != hook.Ordered {
		return n
	}
	for uid, links := range p.live.Links {
		for _, l := range links {
			at := l.Attachment
			if at.Hook != a.Attachment.Hook || at.Ifindex != a.Attachment.Ifindex || uid == a.UID && at.Key() == a.Attachment.Key() {
				continue
			}
			id := p.look.Facts(l.Path, l.Link).ID
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
func (p *reconcile) move(a plan.Action) error {
	if _, err := p.programOf(a); err != nil {
		return err
	}
	r := p.live.Revisions[a.UID][a.Revision]
	for _, program := range r.Copies(a.Attachment.Instance) {
		err := p.attachProgram(a, program)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	program, err := p.copyOf(r, a)
	if err != nil {
		return err
	}
	return p.attachProgram(a, program)
}

// update swaps the program under a link that stays.
func (p *reconcile) update(a plan.Action) error {
	l := p.live.Links[a.UID][a.Attachment.Key()]
	program, err := p.programOf(a)
	if err != nil {
		return err
	}
	if err := swap(l.Link, program); isUnusable(err) {
		return p.attach(a)
	} else if err != nil {
		return fmt.Errorf("update %s on %s %s: %w", a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target, err)
	}
	if err := p.pins.Describe(a.UID, a.Attachment); err != nil {
		return err
	}
	l.Attachment = a.Attachment
	p.look.Changed(l.Path)
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
func (p *reconcile) setChain(a plan.Action) error {
	c := p.live.Chains[a.Ifindex]
	if len(a.Members) == 0 {
		if err := p.pins.RemoveChain(c); err != nil {
			return err
		}
		delete(p.live.Chains, a.Ifindex)
		return nil
	}
	v, err := p.versionOf(a, c)
	if err != nil {
		return err
	}
	if err := p.runVersion(a, v, c); err != nil {
		if c = p.live.Chains[a.Ifindex]; c == nil || c.Version != v {
			p.logClose("chain that was not attached", v)
		}
		return err
	}
	// Who waited for this one is next.
	p.again = p.again || p.chains.behind[a.Ifindex]
	return p.dropFormer(p.live.Chains[a.Ifindex])
}

// runVersion pins a version and has the interface's link run it.
func (p *reconcile) runVersion(a plan.Action, v *kernel.ChainVersion, c *kernel.Chain) error {
	if err := p.pins.PinChainVersion(a.Ifindex, v); err != nil {
		return err
	}
	if c == nil {
		return p.attachChain(a, v, nil)
	}
	err := swap(c.Link, v.Program)
	if isUnusable(err) {
		return p.attachChain(a, v, c)
	}
	if err != nil {
		return fmt.Errorf("update chain of %s: %w", a.Interface, err)
	}
	p.takeVersion(c, v)
	return nil
}

// dropFormer removes the pins of the versions that an interface's link does not
// run any more.
func (p *reconcile) dropFormer(c *kernel.Chain) error {
	if err := p.pins.DropChainVersions(c); err != nil {
		return err
	}
	c.Former = nil
	return nil
}

// versionOf returns the chain that was loaded for the action, or the one that
// runs, where only its link is to be made anew.
func (p *reconcile) versionOf(a plan.Action, c *kernel.Chain) (*kernel.ChainVersion, error) {
	if v := p.chains.versions[a.Ifindex]; v != nil && slices.Equal(v.Members, a.Members) {
		return p.takeLoaded(a.Ifindex), nil
	}
	if c != nil && c.Version != nil && slices.Equal(c.Version.Members, a.Members) {
		return c.Version, nil
	}
	key, v, err := p.loadChain(a.Ifindex, a.Members, nil, "")
	if err == nil {
		p.loads.Take(key)
	}
	return v, err
}

func (p *reconcile) takeVersion(c *kernel.Chain, v *kernel.ChainVersion) {
	if c.Version != nil && c.Version != v {
		c.Former = append(c.Former, c.Version.Members...)
		p.logClose("replaced chain", c.Version)
	}
	c.Version = v
}

func (p *reconcile) attachChain(a plan.Action, v *kernel.ChainVersion, old *kernel.Chain) error {
	l, err := attach.To(attach.Request{Program: v.Program,
		Attachment: plan.Attachment{Program: describeMembers(a.Members), Hook: plan.XDP,
			Target: plan.Target{Ifindex: a.Ifindex, Interface: a.Interface}}})
	if err != nil {
		return err
	}
	if err := p.pins.PinChainLink(a.Ifindex, l); err != nil {
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
		p.logClose("severed chain", old)
	}
	p.live.Chains[a.Ifindex] = c
	p.look.Changed(p.pins.ChainPath(a.Ifindex))
	return nil
}

func describeMembers(members []plan.Member) string {
	if len(members) == 1 {
		return members[0].Program
	}
	return fmt.Sprintf("a chain of %d programs", len(members))
}

// noteChain remembers how an action on a chain went.
func (p *reconcile) noteChain(a plan.Action, err error) {
	if a.Verb != plan.SetChain || isPending(err) {
		return
	}
	if wait := new(retry.ConflictError); err == nil || errors.As(err, &wait) {
		// Who is contested says when it is tried again.
		p.attempts.Forget(a.String())
		return
	}
	p.attempts.Failed(a.String(), p.now, err)
}
