package live

import (
	"iter"
	"maps"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Open is what is open now, for all to read. Its Set alone changes it.
type Open struct {
	// revisions by UID and name.
	revisions map[string]map[string]*loader.Revision
	// links by UID and key, but for XDP.
	links map[string]map[string]*pins.Link
	// chains by device.
	chains map[plan.Device]*pins.Chain
}

// Revision returns a revision of an application; nil where it is not open.
func (o *Open) Revision(uid, name string) *loader.Revision { return o.revisions[uid][name] }

// Revisions returns all by UID and name. The caller changes nothing of it.
func (o *Open) Revisions() map[string]map[string]*loader.Revision { return o.revisions }

// Link returns a link of an application by the key of its attachment; nil where it is not open.
func (o *Open) Link(uid, key string) *pins.Link { return o.links[uid][key] }

// LinksOf are those of an application.
func (o *Open) LinksOf(uid string) iter.Seq[*pins.Link] { return maps.Values(o.links[uid]) }

// Links are all.
func (o *Open) Links() iter.Seq[*pins.Link] {
	return func(yield func(*pins.Link) bool) {
		for _, links := range o.links {
			for _, l := range links {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// Chain returns the chain of a device; nil where it has none.
func (o *Open) Chain(d plan.Device) *pins.Chain { return o.chains[d] }

// Chains are all.
func (o *Open) Chains() iter.Seq2[plan.Device, *pins.Chain] { return maps.All(o.chains) }

// Members returns the application's members of chains: those that the links were given,
// and those that are pinned still.
func (o *Open) Members(uid string) []plan.Member {
	var all []plan.Member
	for _, c := range o.chains {
		if c.Version != nil {
			all = appendOf(all, uid, c.Version.Members)
		}
		all = appendOf(all, uid, c.Former)
	}
	return all
}

// appendOf appends the application's members.
func appendOf(all []plan.Member, uid string, members []plan.Member) []plan.Member {
	for i := range members {
		if members[i].UID == uid {
			all = append(all, members[i])
		}
	}
	return all
}

// GivenTo returns the members of the program that an interface's link was given,
// whether or not the link runs it now.
func (o *Open) GivenTo(d plan.Device) []plan.Member {
	if c := o.chains[d]; c != nil && c.Version != nil {
		return c.Version.Members
	}
	return nil
}

// HasLinks reports whether an application has links, or members of chains.
func (o *Open) HasLinks(uid string) bool { return len(o.links[uid])+len(o.Members(uid)) > 0 }

// IsOff reports whether an interface's chain has a member switched off.
func (o *Open) IsOff(d plan.Device, m plan.Member) bool {
	c := o.chains[d]
	return c != nil && c.Version != nil && c.Version.IsOff(m)
}

// IsInPod reports whether a program of an application has a link on a hook in a pod.
func (o *Open) IsInPod(uid, program, hook string) bool {
	for l := range o.LinksOf(uid) {
		if is := l.Attachment; is.In != "" && is.Program == program && is.Hook == hook {
			return true
		}
	}
	return false
}

// IsInPods reports whether a link or chain is in a pod.
func (o *Open) IsInPods() bool {
	for device := range o.chains {
		if device.NetnsID != 0 {
			return true
		}
	}
	for l := range o.Links() {
		if l.Attachment.In != "" {
			return true
		}
	}
	return false
}
