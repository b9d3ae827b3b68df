package agent

import (
	"fmt"
)

// repin makes again the pins that someone removed.
func (p *pass) repin() {
	for _, revisions := range p.owned.revisions {
		for _, r := range revisions {
			made, err := p.store.Repin(r)
			p.healed("revision "+r.Name, made > 0, err)
		}
	}
	for _, links := range p.owned.links {
		for _, l := range links {
			made, err := p.store.RepinLink(l)
			p.healed("link of "+l.Attachment.Program, made, err)
		}
	}
	for _, c := range p.owned.chains {
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
		p.opts.Observer.Healed(Unpinned)
		p.opts.Log.Warn("pinned again what was removed", "what", what)
	}
}
