package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/hook"
)

// observe repairs pins and reads what is in the kernel.
func (p *pass) observe() error {
	p.repin()
	interfaces, err := targets.Interfaces(wantsPrimary(p.apps), p.running())
	if err != nil {
		return err
	}
	p.state = plan.State{Interfaces: interfaces, Revisions: map[string][]string{}}
	for uid, revisions := range p.owned.revisions {
		for name := range revisions {
			p.state.Revisions[uid] = append(p.state.Revisions[uid], name)
		}
		slices.Sort(p.state.Revisions[uid])
		if len(revisions) == 0 {
			// Its directory is left.
			p.state.Revisions[uid] = nil
		}
	}
	for uid := range p.owned.links {
		if _, known := p.state.Revisions[uid]; !known {
			p.state.Revisions[uid] = nil
		}
	}
	for _, links := range p.owned.links {
		for _, l := range links {
			facts := p.inspect(l.Path, l.Link)
			p.state.Links = append(p.state.Links, plan.Link{UID: l.UID, Attachment: l.Attachment,
				Revision: p.revisionOf(l, facts), Severed: facts.Severed})
		}
	}
	slices.SortFunc(p.state.Links, func(a, b plan.Link) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Attachment.Key(), b.Attachment.Key()))
	})
	p.observeOrder()
	p.observeChains()
	return nil
}

// inspect asks the kernel about a link. One that cannot be read ends no pass: it
// runs nothing that is known, and what is to be done about that can fail alone.
func (p *pass) inspect(path string, l link.Link) kernel.Facts {
	facts, err := kernel.Inspect(l)
	if err != nil {
		p.opts.Log.Error("look at link; others are not affected", "pin", path, "error", err)
		p.unreadable[path] = true
		return kernel.Facts{}
	}
	p.facts[path] = facts
	return facts
}

// observeOrder reads the place of each link on an ordered hook.
func (p *pass) observeOrder() {
	orders := map[string][]link.ID{}
	for i := range p.state.Links {
		l := &p.state.Links[i]
		if h, ok := hook.Lookup(l.Attachment.Hook); !ok || h.Sharing != hook.Ordered || l.Severed {
			continue
		}
		at := fmt.Sprint(l.Attachment.Hook, l.Attachment.Ifindex)
		if orders[at] == nil {
			order, err := attach.OrderTCX(l.Attachment.Hook, l.Attachment.Ifindex)
			if err != nil && !errors.Is(err, attach.ErrTarget) {
				p.opts.Log.Error("read the order of programs; they stay as they are", "hook", l.Attachment.Hook, "interface", l.Attachment.Interface, "error", err)
				l.Unplaced = true
				continue
			}
			orders[at] = order
		}
		pin := p.owned.links[l.UID][l.Attachment.Key()].Path
		l.Position = slices.Index(orders[at], p.facts[pin].ID)
		l.Unplaced = p.facts[pin].ID == 0
	}
}

// revisionOf names the revision whose program a link runs.
func (p *pass) revisionOf(l *kernel.Link, facts kernel.Facts) string {
	for name, r := range p.owned.revisions[l.UID] {
		if instance, ok := r.Instance(facts.Program); ok && instance == l.Attachment.Instance {
			return name
		}
	}
	return ""
}

func (p *pass) observeChains() {
	for index, c := range p.owned.chains {
		facts := p.inspect(p.store.ChainPath(index), c.Link)
		one := plan.Chain{Ifindex: index, Severed: facts.Severed}
		// A program somebody else put under the link is not the members'.
		switch {
		case c.Version == nil:
			one.Unknown, one.Users = true, p.usersOf(facts.Program)
		case facts.Program != 0 && p.programID(c.Version) == facts.Program:
			one.Members = c.Version.Members
		default:
			one.Given = c.Version.Members
		}
		p.state.Chains = append(p.state.Chains, one)
	}
	slices.SortFunc(p.state.Chains, func(a, b plan.Chain) int { return cmp.Compare(a.Ifindex, b.Ifindex) })
}

// usersOf are the applications whose program a link runs, or whose maps that program
// uses: all, where the kernel does not tell.
func (p *pass) usersOf(program ebpf.ProgramID) []string {
	used, err := kernel.MapsOf(program)
	if err != nil {
		p.opts.Log.Error("look whose program a chain runs that is not pinned", "error", err)
	}
	var uids []string
	for uid, revisions := range p.owned.revisions {
		for _, r := range revisions {
			if _, own := r.Instance(program); own || err != nil || r.HasMap(used) {
				uids = append(uids, uid)
				break
			}
		}
	}
	slices.Sort(uids)
	return uids
}

// programID is the kernel's id of a chain's program, 0 where it cannot be read.
func (p *pass) programID(v *kernel.ChainVersion) ebpf.ProgramID {
	id, err := kernel.ProgramID(v.Program)
	if err != nil {
		p.opts.Log.Error("look at chain", "error", err)
	}
	return id
}

// factsOf asks the kernel about a link, once a pass where it is unchanged.
func (p *pass) factsOf(path string, l link.Link) kernel.Facts {
	if f, ok := p.facts[path]; ok && f.ID != 0 || p.unreadable[path] {
		return f
	}
	f, err := kernel.Inspect(l)
	if err != nil {
		p.opts.Log.Error("look at link", "pin", path, "error", err)
	}
	return f
}
