package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
)

// remnantGrace is how long the kernel may take to end a link that was closed: it
// frees links and inodes in the background.
const remnantGrace = 10 * time.Second

// remnant is a link that was taken away and that the kernel may run still.
type remnant struct {
	kernel.Remnant
	since time.Time
}

// detach takes a link away. It is forgotten when the kernel agreed, and reported
// until the kernel runs it no more.
func (p *pass) detach(a plan.Action) error {
	l := p.owned.links[a.UID][a.Attachment.Key()]
	if l == nil {
		return nil
	}
	facts := p.factsOf(l.Path, l.Link)
	if facts.ID == 0 {
		var err error
		if facts, err = l.Identify(); err != nil {
			p.opts.Log.Error("look at link that is to go", "pin", l.Path, "error", err)
		}
	}
	if err := p.store.RemoveLink(l); err != nil {
		return err
	}
	delete(p.owned.links[a.UID], a.Attachment.Key())
	p.owned.remnants[a.UID] = append(p.owned.remnants[a.UID], remnant{kernel.Remnant{Attachment: l.Attachment, Facts: facts}, p.now})
	return nil
}

// drop removes a revision nothing runs any more.
func (p *pass) drop(a plan.Action) error {
	if err := p.store.DropRevision(a.UID, a.Revision); err != nil {
		return err
	}
	if r := p.owned.revisions[a.UID][a.Revision]; r != nil {
		delete(p.owned.revisions[a.UID], a.Revision)
		p.forgetProfile(a.UID, a.Revision)
		p.logClose("dropped revision", r)
	}
	return nil
}

// forget removes the last trace of an application.
func (p *pass) forget(a plan.Action) error {
	if err := p.store.Forget(a.UID); err != nil {
		return err
	}
	delete(p.owned.links, a.UID)
	delete(p.owned.revisions, a.UID)
	return nil
}

// finishUnloads looks after what actions of this pass or of earlier ones left: the
// pins of former chains, and links that somebody else holds.
func (p *pass) finishUnloads() {
	for index, c := range p.owned.chains {
		if len(c.Former) == 0 || c.Version == nil {
			continue
		}
		a := plan.Action{Verb: plan.SetChain, Ifindex: index, Interface: p.interfaceName(index), Members: c.Version.Members}
		owners := uidsOf(c.Former)
		if p.backedOff(owners, a) != nil {
			continue
		}
		err := p.dropFormer(c)
		p.noteChain(a, err)
		for _, uid := range owners {
			p.note(uid, a, err)
		}
	}
	p.attempts.Sweep(p.now)
	for _, uid := range p.unloading() {
		p.followRemnants(uid)
	}
	p.keepRemnants()
}

// unloading lists the applications with links that were taken away.
func (p *pass) unloading() []string {
	var uids []string
	for uid := range p.owned.remnants {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// followRemnants forgets the links that ended, and reports the others. Nothing can
// be done about a link that somebody else holds but to say so.
func (p *pass) followRemnants(uid string) {
	var left []remnant
	for _, r := range p.owned.remnants[uid] {
		if runs, err := r.Runs(); runs || err != nil {
			left = append(left, r)
			p.reportRemnant(uid, r, err)
		}
	}
	if p.owned.remnants[uid] = left; len(left) == 0 {
		delete(p.owned.remnants, uid)
	}
}

func (p *pass) reportRemnant(uid string, r remnant, err error) {
	out := p.outcomes[uid]
	if out == nil {
		out = &outcome{}
		p.outcomes[uid] = out
	}
	if err == nil && p.now.Sub(r.since) < remnantGrace {
		out.unsettled, p.ending = true, true
		return
	}
	at := r.Attachment
	if err == nil {
		err = fmt.Errorf("detach %s from %s %s: its pin is removed, and link %d runs on, because another pin or process holds it; find it with bpftool link show id %d, and end it",
			at.Program, at.Hook, strings.TrimSpace(at.Target.String()), r.Facts.ID, r.Facts.ID)
	}
	out.errs = append(out.errs, err)
}

// leaves reports whether anything of an application is left on the node.
func (p *pass) leaves(uid string) bool {
	return p.inKernel(uid) || len(p.unmanagedFiles[uid]) > 0
}

// inKernel reports whether anything that Skep made for an application is left.
func (p *pass) inKernel(uid string) bool {
	_, links := p.owned.links[uid]
	_, revisions := p.owned.revisions[uid]
	return links || revisions || len(p.chained(uid)) > 0 || len(p.owned.remnants[uid]) > 0
}
