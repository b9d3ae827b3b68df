package node

import (
	"errors"

	"github.com/skep-dev/skep/agent/kernel"
)

// held is everything of the kernel that the agent holds open.
type held struct {
	// revisions by uid and name.
	revisions map[string]map[string]*kernel.Revision
	// links by uid and key, but for xdp.
	links map[string]map[string]*kernel.Link
	// chains by interface index.
	chains map[int]*kernel.Chain
}

func (h *held) close() error {
	var errs []error
	for _, revisions := range h.revisions {
		for _, r := range revisions {
			errs = append(errs, r.Close())
		}
	}
	for _, links := range h.links {
		for _, l := range links {
			errs = append(errs, l.Close())
		}
	}
	for _, c := range h.chains {
		errs = append(errs, c.Close())
	}
	*h = held{}
	return errors.Join(errs...)
}

func (h *held) putRevision(r *kernel.Revision) {
	if h.revisions[r.UID] == nil {
		h.revisions[r.UID] = map[string]*kernel.Revision{}
	}
	h.revisions[r.UID][r.Name] = r
}

func (h *held) putLink(l *kernel.Link) {
	if h.links[l.UID] == nil {
		h.links[l.UID] = map[string]*kernel.Link{}
	}
	h.links[l.UID][l.Attachment.Key()] = l
}

// adopt opens everything that is pinned.
func (a *Agent) adopt() error {
	a.held = held{
		revisions: map[string]map[string]*kernel.Revision{},
		links:     map[string]map[string]*kernel.Link{},
		chains:    map[int]*kernel.Chain{},
	}
	uids, err := a.store.Applications()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		revisions, err := a.store.Revisions(uid)
		if err != nil {
			return err
		}
		for _, name := range revisions {
			r, err := a.store.OpenRevision(uid, name)
			if err != nil {
				return err
			}
			a.held.putRevision(r)
		}
		links, err := a.store.Links(uid)
		if err != nil {
			return err
		}
		for _, l := range links {
			a.held.putLink(l)
		}
	}
	indexes, err := a.store.ChainDevices()
	if err != nil {
		return err
	}
	for _, index := range indexes {
		c, err := a.store.OpenChain(index)
		if err != nil {
			return err
		}
		if c == nil {
			continue
		}
		a.held.chains[index] = c
		// A kill between the swap and the drop leaves the old program pinned, and
		// one before the swap the new one, which is made again.
		if c.Version != nil {
			if err := a.store.DropChainVersions(c); err != nil {
				return err
			}
		}
	}
	return nil
}
