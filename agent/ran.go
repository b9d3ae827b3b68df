package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/statedir"
	"github.com/skep-dev/skep/atomicfile"
)

// Bounds on what is remembered: interfaces that are gone, of one application, and
// records of applications that this node has no intent of.
const (
	maxGone    = 64
	maxUnknown = 1024
)

// ranAt names a place on this node across reboots: an interface by its name, since
// one that is made anew has another index.
type ranAt struct{ uid, hook, iface string }

// ran is what last ran of an application at a place, whole. In the memory for maps, it
// is a revision that was loaded, without an interface.
type ran struct {
	UID       string `json:"uid"`
	Hook      string `json:"hook"`
	Interface string `json:"interface"`
	Revision  string `json:"revision"`
	// Programs are their names, sorted.
	Programs []string `json:"programs"`
	// Need is what they take of the place's limits.
	Need plan.Need `json:"need"`
	// Gone is when the interface was first missed, in unix milliseconds; 0 while it
	// is there.
	Gone int64 `json:"gone,omitempty"`
}

func (r ran) at() ranAt { return ranAt{r.UID, r.Hook, r.Interface} }

// covers reports whether these programs of the revision are among what ran.
func (r ran) covers(revision string, programs []string) bool {
	return revision != "" && r.Revision == revision && !slices.ContainsFunc(programs, func(name string) bool {
		return !slices.Contains(r.Programs, name)
	})
}

// measured reports whether what the programs take was measured, and not only how many
// they are.
func (r ran) measured() bool { return r.Hook != plan.XDP || r.Need.Functions > 0 }

func (r ran) equal(other ran) bool {
	return r.at() == other.at() && r.Revision == other.Revision && slices.Equal(r.Programs, other.Programs) &&
		r.Need == other.Need && r.Gone == other.Gone
}

// limited reports whether the programs of a hook share the limits of an interface.
func limited(hook string) bool { return hook == plan.XDP || attach.IsTCX(hook) }

// readRan reads what the file of an earlier agent says; nothing where there is
// none.
func readRan(path string) (map[ranAt]ran, error) {
	all := map[ranAt]ran{}
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, fmt.Errorf("read what ran: %w", err)
	}
	var list []ran
	if err := json.Unmarshal(body, &list); err != nil {
		return all, fmt.Errorf("read what ran: %w", err)
	}
	for _, r := range list {
		all[r.at()] = r
	}
	return all, nil
}

// writeRan writes the file anew.
func writeRan(path string, all map[ranAt]ran) error {
	list := slices.SortedFunc(maps.Values(all), func(x, y ran) int {
		return cmp.Or(cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.Hook, y.Hook), cmp.Compare(x.UID, y.UID))
	})
	body, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("write what runs: %w", err)
	}
	if err := atomicfile.Write(path, body); err != nil {
		return fmt.Errorf("write what runs: %w", err)
	}
	return nil
}

// presence is what runs at the places of interfaces that exist. An application
// that runs two revisions at one place has none there.
func (p *pass) presence(links []plan.Link, chains []plan.Chain) map[ranAt]ran {
	now, names := map[ranAt]ran{}, map[int]string{}
	for _, i := range p.look.State.Interfaces {
		names[i.Index] = i.Name
	}
	add := func(uid, hook string, ifindex int, revision, program string) {
		name, there := names[ifindex]
		if !there {
			return
		}
		at := ranAt{uid, hook, name}
		one, seen := now[at]
		if !seen {
			one = ran{UID: uid, Hook: hook, Interface: name, Revision: revision}
		}
		if one.Revision != revision {
			one.Revision = ""
		}
		one.Programs = append(one.Programs, program)
		now[at] = one
	}
	for _, l := range links {
		if limited(l.Attachment.Hook) && !l.Severed {
			add(l.UID, l.Attachment.Hook, l.Attachment.Ifindex, l.Revision, l.Attachment.Program)
		}
	}
	for _, c := range chains {
		for _, m := range c.Members {
			if !c.Severed {
				add(m.UID, plan.XDP, c.Ifindex, m.Revision, m.Program)
			}
		}
	}
	for _, one := range now {
		slices.Sort(one.Programs)
	}
	return now
}

// attached is what the kernel has taken by the end of the pass.
func (p *pass) attached() map[ranAt]ran {
	var links []plan.Link
	for _, all := range p.live.Links {
		for _, l := range all {
			if limited(l.Attachment.Hook) {
				facts := p.look.Facts(l.Path, l.Link)
				links = append(links, plan.Link{UID: l.UID, Attachment: l.Attachment, Revision: p.look.RevisionOf(l, facts), Severed: facts.Severed})
			}
		}
	}
	var chains []plan.Chain
	for index, c := range p.live.Chains {
		if c.Version != nil {
			chains = append(chains, plan.Chain{Ifindex: index, Members: c.Version.Members})
		}
	}
	return p.presence(links, chains)
}

// remember keeps what runs at each place, for the next start: only what the
// kernel has taken. What an application no longer asks for, or lost to others, is
// forgotten; what is away with its interface is not.
func (p *pass) remember() {
	now, next := p.attached(), maps.Clone(p.ran)
	p.addMemory(now)
	p.forgetWaits(now)
	for at, one := range now {
		have, known := next[at]
		if one.Revision == "" {
			// In the middle of an update: what ran whole counts on.
			continue
		}
		if known && have.covers(one.Revision, one.Programs) && len(have.Programs) == len(one.Programs) && have.measured() {
			one.Need = have.Need
		} else {
			one.Need = p.needOf(at.uid, at.hook, one.Revision, one.Programs)
		}
		next[at] = one
	}
	// The node's memory is of no interface.
	there := map[string]bool{"": true}
	for _, i := range p.look.State.Interfaces {
		there[i.Name] = true
	}
	for at, one := range next {
		if _, runs := now[at]; runs {
			continue
		}
		switch {
		case p.forgets(at, there[at.iface]):
			delete(next, at)
		case there[at.iface]:
			one.Gone = 0
			next[at] = one
		case one.Gone == 0:
			one.Gone = p.now.UnixMilli()
			next[at] = one
		}
	}
	p.boundRan(next)
	p.keepRan(next)
}

// forgets reports whether what ran at a place and does not now has no claim to it
// any more.
func (p *pass) forgets(at ranAt, there bool) bool {
	if slices.Contains(p.want.Gone, at.uid) || p.lost[at] {
		return true
	}
	if at == inMemory(at.uid) {
		return p.opts.MapMemory == 0
	}
	i := slices.IndexFunc(p.want.Applications, func(a plan.Application) bool { return a.UID == at.uid })
	if i < 0 || !there {
		return false
	}
	if out := p.outcomes[at.uid]; out != nil && len(out.links) > 0 {
		// A target of its is not there: it may be this one, once it is primary.
		return false
	}
	return !slices.ContainsFunc(p.want.Applications[i].Attachments, func(a plan.Attachment) bool {
		return a.Hook == at.hook && a.Interface == at.iface
	})
}

// boundRan bounds what is remembered of interfaces that are gone, by application,
// and of applications that are not known. No application takes another's room.
func (p *pass) boundRan(all map[ranAt]ran) {
	gone, unknown := map[string][]ran{}, []ran{}
	for at, one := range all {
		switch {
		case p.applicationOf(at.uid) == nil:
			unknown = append(unknown, one)
		case one.Gone != 0:
			gone[at.uid] = append(gone[at.uid], one)
		}
	}
	drop := func(list []ran, most int) {
		if len(list) <= most {
			return
		}
		slices.SortFunc(list, func(x, y ran) int {
			// What is there comes first, and then what was missed last.
			return cmp.Or(cmp.Compare(min(x.Gone, 1), min(y.Gone, 1)), cmp.Compare(y.Gone, x.Gone), cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.Hook, y.Hook), cmp.Compare(x.UID, y.UID))
		})
		for _, one := range list[most:] {
			delete(all, one.at())
		}
	}
	for _, list := range gone {
		drop(list, maxGone)
	}
	drop(unknown, maxUnknown)
}

// keepRan writes what changed. What could not be written is tried again at the
// next pass, and logged once.
func (p *pass) keepRan(next map[ranAt]ran) {
	changed := !maps.EqualFunc(p.ran, next, ran.equal)
	p.Agent.ran = next
	if !changed && p.ranErr == "" {
		return
	}
	err := writeRan(p.dir.Path(statedir.Ran), next)
	if err == nil {
		p.ranErr = ""
		return
	}
	if p.ranErr != err.Error() {
		p.opts.Log.Error("remember what runs", "error", err)
	}
	p.ranErr = err.Error()
}
