package agent

import (
	"errors"
	"slices"

	"github.com/skep-dev/skep/agent/kernel"
)

// ownedState is everything of the kernel that the agent holds open.
type ownedState struct {
	// revisions by uid and name.
	revisions map[string]map[string]*kernel.Revision
	// links by uid and key, but for xdp.
	links map[string]map[string]*kernel.Link
	// chains by interface index.
	chains map[int]*kernel.Chain
	// remnants are links, by uid, that were taken away and may run still.
	remnants map[string][]remnant
	// unread are pins that could not be opened.
	unread []kernel.Stray
}

func (h *ownedState) close() error {
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
	*h = ownedState{}
	return errors.Join(errs...)
}

func (h *ownedState) putRevision(r *kernel.Revision) {
	if h.revisions[r.UID] == nil {
		h.revisions[r.UID] = map[string]*kernel.Revision{}
	}
	h.revisions[r.UID][r.Name] = r
}

func (h *ownedState) putLink(l *kernel.Link) {
	if h.links[l.UID] == nil {
		h.links[l.UID] = map[string]*kernel.Link{}
	}
	h.links[l.UID][l.Attachment.Key()] = l
}

// adopt opens everything that is pinned. What cannot be read is noted and left
// out.
func (a *Agent) adopt() error {
	a.owned = ownedState{
		revisions: map[string]map[string]*kernel.Revision{},
		links:     map[string]map[string]*kernel.Link{},
		chains:    map[int]*kernel.Chain{},
	}
	a.restoreRemnants()
	uids, err := a.store.Applications()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := a.adoptApplication(uid); err != nil {
			return err
		}
	}
	indexes, err := a.store.ChainDevices()
	if err != nil {
		return err
	}
	for _, index := range indexes {
		c, strays, err := a.store.OpenChain(index)
		if err != nil {
			return err
		}
		a.owned.unread = append(a.owned.unread, strays...)
		if c == nil {
			continue
		}
		a.owned.chains[index] = c
		// A kill between the swap and the drop leaves the old program pinned, and
		// one before the swap the new one, which is made again.
		if c.Version == nil {
			continue
		}
		if err := a.store.DropChainVersions(c); err != nil {
			// It is tried again by every pass.
			a.opts.Log.Error("drop what a chain does not run any more", "error", err)
			continue
		}
		c.Former = nil
	}
	return nil
}

// adoptApplication opens what one application has pinned.
func (a *Agent) adoptApplication(uid string) error {
	revisions, err := a.store.Revisions(uid)
	if err != nil {
		return err
	}
	for _, name := range revisions {
		r, strays, err := a.store.OpenRevision(uid, name)
		if err != nil {
			return err
		}
		a.owned.unread = append(a.owned.unread, strays...)
		a.owned.putRevision(r)
	}
	links, strays, err := a.store.Links(uid)
	if err != nil {
		return err
	}
	a.owned.unread = append(a.owned.unread, strays...)
	for _, l := range links {
		a.owned.putLink(l)
	}
	if err := a.store.DropEmpty(uid); err != nil {
		// The next start tries again: an empty directory runs nothing.
		a.opts.Log.Warn("remove the empty directories of an application", "application", a.nameOf(uid), "error", err)
	}
	return nil
}

// findUnmanagedFiles looks for what is among the pins and is not Skep's, or could not
// be read when the agent started, and logs each once.
func (p *pass) findUnmanagedFiles() {
	strays, err := p.store.Strays()
	if err != nil {
		p.opts.Log.Error("look among the pins", "error", err)
	}
	p.owned.unread = slices.DeleteFunc(p.owned.unread, func(s kernel.Stray) bool { return !s.There() })
	told := map[string]bool{}
	for _, s := range append(strays, p.owned.unread...) {
		p.unmanagedFiles[s.UID] = append(p.unmanagedFiles[s.UID], s.String())
		told[s.Path] = true
		if p.told[s.Path] {
			continue
		}
		if s.Err != nil {
			p.opts.Log.Error("cannot read a pin; what it held is made anew where an intent asks for it", "path", s.Path, "error", s.Err)
			continue
		}
		p.opts.Log.Warn("what lies among the pins is not Skep's, and is left alone", "path", s.Path)
	}
	p.told = told
}
