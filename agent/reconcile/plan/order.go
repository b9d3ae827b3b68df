package plan

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/hook"
)

// Compare orders two attachments of one ordered hook: by priority, namespace,
// name, program. It returns what cmp.Compare does.
func Compare(a, b Attachment) int { return compare(&a, &b) }

func compare(a, b *Attachment) int {
	return cmp.Or(
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.Application.Namespace, b.Application.Namespace),
		cmp.Compare(a.Application.Name, b.Application.Name),
		cmp.Compare(a.Program, b.Program),
	)
}

// place is one link on one hook of one interface.
type place struct {
	id       id
	uid      string
	wanted   *Attachment
	position int
}

// misplaced finds the links that run in another order than they are to, and
// of those the fewest that need to move. Programs of others do not matter: ours
// move around them.
func (p *planner) misplaced(found map[id]*Link) map[id]bool {
	hooks := map[Device]map[string][]place{}
	for _, app := range p.want.Applications {
		for i := range app.Attachments {
			a := &app.Attachments[i]
			h, ok := hook.Lookup(a.Hook)
			if !ok || !h.TakesPriority() || a.Hook == XDP {
				continue
			}
			id := p.id(app.UID, a)
			old := found[id]
			if old == nil || old.Severed || old.Unplaced {
				continue
			}
			at := a.Target.Device()
			if hooks[at] == nil {
				hooks[at] = map[string][]place{}
			}
			hooks[at][a.Hook] = append(hooks[at][a.Hook], place{id, app.UID, a, old.Position})
		}
	}
	out := map[id]bool{}
	for _, byHook := range hooks {
		for _, places := range byHook {
			slices.SortFunc(places, func(x, y place) int {
				return cmp.Or(compare(x.wanted, y.wanted), cmp.Compare(x.uid, y.uid))
			})
			for _, m := range movers(places) {
				out[m.id] = true
			}
		}
	}
	return out
}

// movers returns the places outside one longest run that is in order already.
func movers(places []place) []place {
	best := make([]int, len(places))
	from := make([]int, len(places))
	last := -1
	for i := range places {
		best[i], from[i] = 1, -1
		for j := range i {
			if places[j].position < places[i].position && best[j]+1 > best[i] {
				best[i], from[i] = best[j]+1, j
			}
		}
		if last < 0 || best[i] > best[last] {
			last = i
		}
	}
	stays := map[int]bool{}
	for i := last; i >= 0; i = from[i] {
		stays[i] = true
	}
	var out []place
	for i, m := range places {
		if !stays[i] {
			out = append(out, m)
		}
	}
	return out
}
