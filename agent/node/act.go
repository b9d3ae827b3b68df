package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// act does the actions in order. One that fails stops no other, but keeps what
// its application runs from being dropped.
func (p *pass) act(actions []plan.Action) {
	stuck := map[string]bool{}
	p.carryVariables()
	for _, a := range actions {
		owners := []string{a.UID}
		if a.Verb == plan.SetChain {
			owners = uidsOf(a.Members)
		}
		if (a.Verb == plan.Drop || a.Verb == plan.Forget) && stuck[a.UID] {
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

// try does an action and notes how it went.
func (p *pass) try(owners []string, a plan.Action) error {
	err := p.heal(a)
	if err == nil {
		p.opts.Log.Info("act", "action", a.String())
		err = p.do(a)
	}
	for _, uid := range owners {
		p.note(uid, a, err)
	}
	return err
}

// carryVariables takes the values of global variables over to the revisions
// that are about to run for the first time.
func (p *pass) carryVariables() {
	for _, want := range p.want.Applications {
		old := p.liveRevision(want.UID)
		next := p.held.revisions[want.UID][want.Revision]
		if old == nil || next == nil || old == next || p.runs(want.UID, want.Revision) {
			continue
		}
		if err := p.carry(want, old, next); err != nil {
			p.opts.Log.Error("carry variables", "application", want.Identity.String(), "error", err)
		}
	}
}

func (p *pass) carry(want plan.Application, old, next *kernel.Revision) error {
	o := p.intentOf(want.UID, want.Revision)
	if o == nil {
		return nil
	}
	prepared, err := p.prepare(*o)
	if err != nil {
		return err
	}
	carried, err := kernel.CarryVariables(prepared, old, next)
	for _, app := range p.apps {
		if app.newest.Payload().UID != want.UID {
			continue
		}
		app.maps = slices.Clone(app.maps)
		for i := range app.maps {
			if names := carried[app.maps[i].Map]; len(names) > 0 {
				app.maps[i].Carried = names
			}
		}
	}
	return err
}

// runs tells whether any link runs the revision.
func (p *pass) runs(uid, revision string) bool {
	return slices.ContainsFunc(p.state.Links, func(l plan.Link) bool { return l.UID == uid && l.Revision == revision }) ||
		slices.ContainsFunc(p.state.Chains, func(c plan.Chain) bool {
			return slices.ContainsFunc(c.Members, func(m plan.Member) bool { return m.UID == uid && m.Revision == revision })
		})
}

func uidsOf(members []plan.Member) []string {
	var uids []string
	for _, m := range members {
		if !slices.Contains(uids, m.UID) {
			uids = append(uids, m.UID)
		}
	}
	return uids
}

// backedOff returns the error of an action that failed a short while ago.
func (p *pass) backedOff(owners []string, a plan.Action) error {
	for _, app := range p.apps {
		uid := app.newest.Payload().UID
		if err := app.failed[a.String()]; err != nil && slices.Contains(owners, uid) && p.now.Before(app.retryAt) {
			p.outcomes[uid].failed(uid, a, err)
			return err
		}
	}
	return nil
}

// note remembers how an action went.
func (p *pass) note(uid string, a plan.Action, err error) {
	if err == nil {
		return
	}
	out := p.outcomes[uid]
	if out == nil {
		out = &outcome{}
		p.outcomes[uid] = out
	}
	out.failed(uid, a, err)
	if wait := new(contested); errors.As(err, &wait) {
		return
	}
	out.tried = true
	for _, app := range p.apps {
		if app.newest.Payload().UID != uid {
			continue
		}
		if app.failed == nil {
			app.failed = map[string]error{}
		}
		app.failed[a.String()] = err
	}
	p.opts.Log.Error("act", "action", a.String(), "error", err)
}

// failed notes an action that has no success.
func (o *outcome) failed(uid string, a plan.Action, err error) {
	o.errs = append(o.errs, err)
	state := Failed
	if wait := new(contested); errors.As(err, &wait) {
		state = Contested
	}
	if a.Attachment.Hook != "" && a.Verb != plan.Detach {
		o.links = append(o.links, unmade{a.Attachment.Program, LinkStatus{Hook: a.Attachment.Hook,
			Target: a.Attachment.Target.String(), State: state, Error: err.Error()}})
	}
	for _, m := range a.Members {
		if m.UID == uid {
			o.links = append(o.links, unmade{m.Program, LinkStatus{Hook: plan.XDP, Target: a.Interface, State: state, Error: err.Error()}})
		}
	}
}

func (p *pass) do(a plan.Action) error {
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
		delete(p.held.links, a.UID)
		delete(p.held.revisions, a.UID)
		return p.store.Forget(a.UID)
	}
	return fmt.Errorf("do %s: no such action", a)
}

// attach makes a link and lets the one go that it stands in for.
func (p *pass) attach(a plan.Action) error {
	program, err := p.programOf(a)
	if err != nil {
		return err
	}
	return p.attachProgram(a, program)
}

func (p *pass) attachProgram(a plan.Action, program *ebpf.Program) error {
	old := p.held.links[a.UID][a.Attachment.Key()]
	l, err := attach.To(attach.Request{Attachment: a.Attachment, Program: program,
		CgroupRoot: p.opts.CgroupRoot, Neighbours: p.neighbours(a)})
	if err != nil {
		return err
	}
	pinned, err := p.store.PinLink(a.UID, a.Attachment, l)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	p.held.putLink(pinned)
	delete(p.facts, pinned.Path)
	if old != nil {
		p.logClose("replaced link", old)
	}
	return nil
}

func (p *pass) programOf(a plan.Action) (*ebpf.Program, error) {
	r := p.held.revisions[a.UID][a.Revision]
	if r == nil || r.Programs[a.Attachment.Instance] == nil {
		return nil, fmt.Errorf("attach %s: revision %s of it is not in the kernel", a.Attachment.Instance, a.Revision)
	}
	return r.Programs[a.Attachment.Instance], nil
}

// neighbours are our links on the same ordered hook and interface.
func (p *pass) neighbours(a plan.Action) attach.Neighbours {
	var n attach.Neighbours
	if h, ok := hook.Lookup(a.Attachment.Hook); !ok || h.Sharing != hook.Ordered {
		return n
	}
	for uid, links := range p.held.links {
		for _, l := range links {
			at := l.Attachment
			if at.Hook != a.Attachment.Hook || at.Ifindex != a.Attachment.Ifindex || uid == a.UID && at.Key() == a.Attachment.Key() {
				continue
			}
			id := p.factsOf(l.Path, l.Link).ID
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
func (p *pass) move(a plan.Action) error {
	if _, err := p.programOf(a); err != nil {
		return err
	}
	r := p.held.revisions[a.UID][a.Revision]
	for _, program := range r.Copies(a.Attachment.Instance) {
		err := p.attachProgram(a, program)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	o := p.intentOf(a.UID, a.Revision)
	if o == nil {
		return fmt.Errorf("move %s: its intent is not known here", a.Attachment.Program)
	}
	prepared, err := p.prepare(*o)
	if err != nil {
		return err
	}
	program, err := p.store.Copy(r, prepared, a.Attachment.Instance)
	if err != nil {
		return err
	}
	return p.attachProgram(a, program)
}

// update swaps the program under a link that stays.
func (p *pass) update(a plan.Action) error {
	l := p.held.links[a.UID][a.Attachment.Key()]
	program, err := p.programOf(a)
	if err != nil {
		return err
	}
	if err := swap(l.Link, program); errors.Is(err, unix.ENOLINK) {
		return p.attach(a)
	} else if err != nil {
		return fmt.Errorf("update %s on %s %s: %w", a.Attachment.Program, a.Attachment.Hook, a.Attachment.Target, err)
	}
	if err := p.store.Describe(a.UID, a.Attachment); err != nil {
		return err
	}
	l.Attachment = a.Attachment
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

// setChain gives an interface's link the program of the members.
func (p *pass) setChain(a plan.Action) error {
	c := p.held.chains[a.Ifindex]
	if len(a.Members) == 0 {
		delete(p.held.chains, a.Ifindex)
		return p.store.RemoveChain(c)
	}
	v, err := p.versionOf(a, c)
	if err != nil {
		return err
	}
	if err := p.store.PinChainVersion(a.Ifindex, v); err != nil {
		return err
	}
	if c != nil {
		err := swap(c.Link, v.Program)
		if err != nil && !errors.Is(err, unix.ENOLINK) {
			return fmt.Errorf("update chain of %s: %w", a.Interface, err)
		}
		if err == nil {
			p.takeVersion(c, v)
			return p.store.DropChainVersions(c)
		}
	}
	return p.attachChain(a, v, c)
}

// versionOf returns the chain that was loaded for the action, or the one that
// runs, where only its link is to be made anew.
func (p *pass) versionOf(a plan.Action, c *kernel.Chain) (*kernel.ChainVersion, error) {
	if v := p.versions[a.Ifindex]; v != nil && slices.Equal(v.Members, a.Members) {
		delete(p.versions, a.Ifindex)
		return v, nil
	}
	if c != nil && c.Version != nil && slices.Equal(c.Version.Members, a.Members) {
		return c.Version, nil
	}
	return p.loadChain(a.Ifindex, a.Members, nil)
}

func (p *pass) takeVersion(c *kernel.Chain, v *kernel.ChainVersion) {
	if c.Version != nil && c.Version != v {
		p.logClose("replaced chain", c.Version)
	}
	c.Version = v
}

func (p *pass) attachChain(a plan.Action, v *kernel.ChainVersion, old *kernel.Chain) error {
	l, err := attach.To(attach.Request{Program: v.Program,
		Attachment: plan.Attachment{Program: sayMembers(a.Members), Hook: plan.XDP,
			Target: plan.Target{Ifindex: a.Ifindex, Interface: a.Interface}}})
	if err != nil {
		return err
	}
	if err := p.store.PinChainLink(a.Ifindex, l); err != nil {
		return errors.Join(err, l.Close())
	}
	c := &kernel.Chain{Ifindex: a.Ifindex, Link: l, Version: v}
	if old != nil {
		if old.Version == v {
			old.Version = nil
		}
		p.logClose("severed chain", old)
	}
	p.held.chains[a.Ifindex] = c
	delete(p.facts, p.store.ChainPath(a.Ifindex))
	return p.store.DropChainVersions(c)
}

func sayMembers(members []plan.Member) string {
	if len(members) == 1 {
		return members[0].Program
	}
	return fmt.Sprintf("a chain of %d programs", len(members))
}

func (p *pass) detach(a plan.Action) error {
	l := p.held.links[a.UID][a.Attachment.Key()]
	if l == nil {
		return nil
	}
	delete(p.held.links[a.UID], a.Attachment.Key())
	return p.store.RemoveLink(l)
}

func (p *pass) drop(a plan.Action) error {
	if r := p.held.revisions[a.UID][a.Revision]; r != nil {
		delete(p.held.revisions[a.UID], a.Revision)
		p.logClose("dropped revision", r)
	}
	return p.store.DropRevision(a.UID, a.Revision)
}

// repin makes again the pins that someone removed.
func (p *pass) repin() {
	for _, revisions := range p.held.revisions {
		for _, r := range revisions {
			made, err := p.store.Repin(r)
			p.healed("revision "+r.Name, made > 0, err)
		}
	}
	for _, links := range p.held.links {
		for _, l := range links {
			made, err := p.store.RepinLink(l)
			p.healed("link of "+l.Attachment.Program, made, err)
		}
	}
	for _, c := range p.held.chains {
		if c.Version == nil {
			continue
		}
		made, err := p.store.RepinChain(c)
		p.healed(fmt.Sprintf("chain of interface %d", c.Ifindex), made, err)
	}
}

func (p *pass) healed(what string, made bool, err error) {
	switch {
	case err != nil:
		p.opts.Log.Error("pin again", "what", what, "error", err)
	case made:
		p.opts.Log.Warn("pinned again what was removed", "what", what)
	}
}

// fail notes that the newest intent cannot be had.
func (p *pass) fail(app *application, err error) {
	uid := app.newest.Payload().UID
	p.outcomes[uid].errs = append(p.outcomes[uid].errs, err)
	p.outcomes[uid].tried, p.outcomes[uid].refused = true, true
	app.refused = app.newest.Payload().Serial
	app.log = kernel.LogOf(err)
	p.opts.Log.Error("load", "application", app.newest.Payload().Application.String(), "error", err)
}

// refuse takes an application's newest intent out of this pass.
func (p *pass) refuse(uid string, err error) {
	p.want.Applications = slices.DeleteFunc(p.want.Applications, func(a plan.Application) bool { return a.UID == uid })
	for _, app := range p.apps {
		if app.newest.Payload().UID != uid {
			continue
		}
		again := p.outcomes[uid].live != &app.newest
		p.outcomes[uid] = &outcome{errs: p.outcomes[uid].errs, refused: true}
		p.fail(app, err)
		if again {
			p.want.Frozen = append(p.want.Frozen, uid)
			return
		}
		p.fallBack(app)
	}
}

// finish writes what the pass found out back, and wakes who waits for it.
func (p *pass) finish() {
	for _, v := range p.versions {
		p.logClose("unused chain", v)
	}
	for _, app := range p.apps {
		p.settle(app)
	}
	p.pruneObjects()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := true
	for _, app := range p.apps {
		uid := app.newest.Payload().UID
		if now := p.Agent.apps[uid]; now == nil || now.newest.Payload().Serial != app.newest.Payload().Serial {
			all = false
			continue
		}
		p.Agent.apps[uid] = app
	}
	if all && len(p.apps) == len(p.Agent.apps) {
		select {
		case <-p.settled:
		default:
			close(p.settled)
		}
	}
}

// pruneObjects drops the cached objects of intents that were replaced.
func (p *pass) pruneObjects() {
	if !p.prune {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	used := map[string]bool{}
	for _, app := range p.Agent.apps {
		used[app.newest.Payload().ObjectDigest] = true
	}
	for _, app := range p.apps {
		used[app.newest.Payload().ObjectDigest] = true
		if app.deployed != nil {
			used[app.deployed.Payload().ObjectDigest] = true
		}
	}
	if err := p.cache.prune(used); err != nil {
		p.opts.Log.Error("drop cached objects", "error", err)
	}
}

// settle works out back-off and status of one application.
func (p *pass) settle(app *application) {
	payload := app.newest.Payload()
	out := p.outcomes[payload.UID]
	if out == nil {
		return
	}
	app.tried = payload.Serial
	switch {
	case len(out.errs) == 0 && !out.refused:
		app.failures, app.refused, app.failed, app.log = 0, 0, nil, ""
		p.keepDeployed(app, out)
	case out.tried:
		app.failures++
		app.retryAt = p.now.Add(p.opts.BackOff.after(app.failures))
	case len(out.errs) == 0 && app.status.Error != "":
		// Backing off: the old words stay.
		out.errs = []error{errors.New(app.status.Error)}
	}
	app.status = p.status(app, out)
}

// keepDeployed remembers the intent that now runs in whole.
func (p *pass) keepDeployed(app *application, out *outcome) {
	payload := app.newest.Payload()
	var err error
	switch {
	case payload.Tombstone && app.deployed != nil:
		if err = p.cache.dropIntent(payload.UID, deployed); err == nil {
			app.deployed, p.prune = nil, true
		}
	case out.live != nil && (app.deployed == nil || app.deployed.Payload().Serial != payload.Serial):
		if err = p.cache.keepDeployed(payload.UID); err == nil {
			o := app.newest
			app.deployed, p.prune = &o, true
		}
	}
	if err != nil {
		p.opts.Log.Error("remember what runs", "application", payload.Application.String(), "error", err)
	}
}

// after is how long to wait after so many failures in a row.
func (b BackOff) after(failures int) time.Duration {
	wait := b.First
	for range failures - 1 {
		if wait *= 2; wait >= b.Most {
			wait = b.Most
			break
		}
	}
	return wait + time.Duration(rand.Float64()*float64(wait)/4)
}

// intentOf finds the intent with the revision.
func (p *pass) intentOf(uid, revision string) *intent.Opened {
	for _, app := range p.apps {
		if app.newest.Payload().UID != uid {
			continue
		}
		if !app.newest.Payload().Tombstone && app.newest.Revision() == revision {
			return &app.newest
		}
		if app.deployed != nil && app.deployed.Revision() == revision {
			return app.deployed
		}
	}
	return nil
}

// factsOfObject reads what the bytecode does.
func (p *pass) factsOfObject(o intent.Opened) (*bytecode.Facts, error) {
	object, err := p.object(o.Payload())
	if err != nil {
		return nil, err
	}
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return nil, fmt.Errorf("inspect object of %s: %w", o.Payload().Application, err)
	}
	return &facts, nil
}

// factsOf asks the kernel about a link, once a pass where it is unchanged.
func (p *pass) factsOf(path string, l link.Link) kernel.Facts {
	if f, ok := p.facts[path]; ok && f.ID != 0 {
		return f
	}
	f, err := kernel.Inspect(l)
	if err != nil {
		p.opts.Log.Error("look at link", "pin", path, "error", err)
	}
	return f
}

func (p *pass) logClose(what string, c io.Closer) {
	if err := c.Close(); err != nil {
		p.opts.Log.Error("let go", "what", what, "error", err)
	}
}
