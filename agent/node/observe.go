package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/hook"
)

// observe repairs pins and reads what is in the kernel.
func (p *pass) observe() error {
	p.repin()
	interfaces, err := kernelDevices().list(wantsPrimary(p.apps), p.running())
	if err != nil {
		return err
	}
	p.state = plan.State{Interfaces: interfaces, Revisions: map[string][]string{}}
	for uid, revisions := range p.held.revisions {
		for name := range revisions {
			p.state.Revisions[uid] = append(p.state.Revisions[uid], name)
		}
		slices.Sort(p.state.Revisions[uid])
		if len(revisions) == 0 {
			// Its directory is left.
			p.state.Revisions[uid] = nil
		}
	}
	for uid := range p.held.links {
		if _, known := p.state.Revisions[uid]; !known {
			p.state.Revisions[uid] = nil
		}
	}
	for _, links := range p.held.links {
		for _, l := range links {
			facts, err := kernel.Inspect(l.Link)
			if err != nil {
				return err
			}
			p.facts[l.Path] = facts
			p.state.Links = append(p.state.Links, plan.Link{UID: l.UID, Attachment: l.Attachment,
				Revision: p.revisionOf(l, facts), Severed: facts.Severed})
		}
	}
	slices.SortFunc(p.state.Links, func(a, b plan.Link) int {
		return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.Attachment.Key(), b.Attachment.Key()))
	})
	if err := p.observeOrder(); err != nil {
		return err
	}
	return p.observeChains()
}

// observeOrder reads the place of each link on an ordered hook.
func (p *pass) observeOrder() error {
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
				return err
			}
			orders[at] = order
		}
		pin := p.held.links[l.UID][l.Attachment.Key()].Path
		l.Position = slices.Index(orders[at], p.facts[pin].ID)
	}
	return nil
}

// revisionOf names the revision whose program a link runs.
func (p *pass) revisionOf(l *kernel.Link, facts kernel.Facts) string {
	for name, r := range p.held.revisions[l.UID] {
		if instance, ok := r.Instance(facts.Program); ok && instance == l.Attachment.Instance {
			return name
		}
	}
	return ""
}

func (p *pass) observeChains() error {
	for index, c := range p.held.chains {
		facts, err := kernel.Inspect(c.Link)
		if err != nil {
			return err
		}
		p.facts[p.store.ChainPath(index)] = facts
		one := plan.Chain{Ifindex: index, Severed: facts.Severed}
		if c.Version != nil {
			id, err := kernel.ProgramID(c.Version.Program)
			if err != nil {
				return err
			}
			// A program somebody else put under the link is not the members'.
			if id == facts.Program {
				one.Members = c.Version.Members
			}
		}
		p.state.Chains = append(p.state.Chains, one)
	}
	slices.SortFunc(p.state.Chains, func(a, b plan.Chain) int { return cmp.Compare(a.Ifindex, b.Ifindex) })
	return nil
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
