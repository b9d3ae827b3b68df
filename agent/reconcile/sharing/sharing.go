// Package sharing finds whose map an application may use in place of one of its own. It reads
// the sealed intents of a node and nothing else: the owner's lists who may use a map, and the
// other's names the map. Neither of the two reaches a map alone. The package opens no map.
package sharing

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// WaitError is the error of a version whose map another application does not have on this
// node at present. It takes no attempt to see that it came.
type WaitError struct {
	// Application has the Map.
	Application, Map string
	// Why it is not there.
	Why string
}

// Error names the map, the application and the reason.
func (e *WaitError) Error() string {
	return fmt.Sprintf("waits for map %s of application %s: %s", e.Map, e.Application, e.Why)
}

// DeniedError is the error of a version that may not use a map, or never can.
type DeniedError struct {
	// Field is the one that names the map.
	Field string
	// Reason says what is wrong, and Fix what would fix it.
	Reason, Fix string
}

// Error names the field, the reason and the fix.
func (e *DeniedError) Error() string { return fmt.Sprintf("%s: %s; %s", e.Field, e.Reason, e.Fix) }

// Applications are those of a node, with what their sealed intents say of maps.
type Applications struct {
	node version.Node
	all  map[v1alpha1.Identity]version.Known
}

// Of returns the applications. Of several of one name, such as one that was deleted and made
// again, that one counts which is to run, and of those the youngest.
func Of(node version.Node, known []version.Known) *Applications {
	a := &Applications{node: node, all: map[v1alpha1.Identity]version.Known{}}
	for _, one := range known {
		p := one.Newest.Payload()
		other, twice := a.all[p.Application]
		if twice && precedes(other.Newest.Payload(), p) {
			continue
		}
		a.all[p.Application] = one
	}
	return a
}

// precedes reports whether a name is a's rather than b's.
func precedes(a, b intent.Payload) bool {
	if a.Tombstone != b.Tombstone {
		return b.Tombstone
	}
	return cmp.Or(cmp.Compare(a.CreatedAt(), b.CreatedAt()), strings.Compare(a.UID, b.UID)) > 0
}

// Taken lists the maps of a version that are another application's, in order.
func Taken(p intent.Payload) []string {
	var names []string
	for name, m := range p.Maps {
		if m.From != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Versions returns those of an application that may have something that runs, the newest first.
func (a *Applications) Versions(of v1alpha1.Identity) []intent.Payload {
	one, known := a.all[of]
	if !known {
		return nil
	}
	newest := one.Newest.Payload()
	all := newest.Versions()
	if one.Deployed != nil {
		all = append(all, one.Deployed.Payload())
	}
	return all
}

// ownerOf is the application that a map is taken from.
func ownerOf(taker v1alpha1.Identity, from v1alpha1.MapSource) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: taker.Kind, Namespace: taker.Namespace, Name: from.Application}
}

// Owner returns the application that has the map which a version takes in place of its own
// map of the name. It fails with a *WaitError or a *DeniedError.
func (a *Applications) Owner(p intent.Payload, name string) (version.Known, error) {
	from := *p.Maps[name].From
	owner, known := a.all[ownerOf(p.Application, from)]
	if why := a.absent(owner, known); why != "" {
		return version.Known{}, &WaitError{Application: from.Application, Map: from.Map, Why: why}
	}
	if shared := owner.Newest.Payload().Maps[from.Map].SharedWith; !slices.Contains(shared, p.Application.Name) {
		return version.Known{}, &DeniedError{Field: "maps." + name + ".from",
			Reason: fmt.Sprintf("application %s does not share its map %s with %s", from.Application, from.Map, p.Application.Name),
			Fix:    fmt.Sprintf("add %s to spec.maps.%s.sharedWith of %s", p.Application.Name, from.Map, from.Application)}
	}
	return owner, nil
}

// absent says why nothing of an application is to run on this node; empty where something is.
func (a *Applications) absent(owner version.Known, known bool) string {
	if !known {
		return "this node knows no application of that name; apply it, or correct the name"
	}
	p := owner.Newest.Payload()
	switch {
	case p.Tombstone:
		return "it was deleted"
	case len(p.Programs) == 0:
		return "its rollout has not come to this node"
	case !a.node.MayHave(owner.Newest):
		return "its node selector does not match this node"
	}
	return ""
}

// Cycle returns the fix for applications that wait for maps of each other, so that none of
// them can be loaded first; nil where the version does not wait for itself. isLoaded reports
// whether a version of an application is in the kernel.
func (a *Applications) Cycle(p intent.Payload, isLoaded func(uid string) bool) error {
	var path []string
	seen := map[v1alpha1.Identity]bool{}
	var leadsBack func(of intent.Payload) bool
	leadsBack = func(of intent.Payload) bool {
		for _, name := range Taken(of) {
			owner := ownerOf(of.Application, *of.Maps[name].From)
			path = append(path, fmt.Sprintf("%s takes %s from %s", of.Application.Name, name, owner.Name))
			if owner == p.Application {
				return true
			}
			known, ok := a.all[owner]
			if next := known.Newest.Payload(); ok && !seen[owner] && !next.Tombstone && !isLoaded(next.UID) {
				if seen[owner] = true; leadsBack(next) {
					return true
				}
			}
			path = path[:len(path)-1]
		}
		return false
	}
	if !leadsBack(p) {
		return nil
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(path[0], p.Application.Name+" takes "), " from ")
	return &DeniedError{Field: "maps." + name + ".from", Reason: "these applications wait for each other: " + strings.Join(path, ", "),
		Fix: "let one of them have both maps, and share them"}
}

// OwnersFirst returns the indexes of applications in an order in which those that have maps
// come before those that take them.
func OwnersFirst(known []version.Known) []int {
	index := map[v1alpha1.Identity][]int{}
	for i, one := range known {
		id := one.Newest.Payload().Application
		index[id] = append(index[id], i)
	}
	order, seen := make([]int, 0, len(known)), make([]bool, len(known))
	var visit func(i int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		p := known[i].Newest.Payload()
		for _, name := range Taken(p) {
			for _, owner := range index[ownerOf(p.Application, *p.Maps[name].From)] {
				visit(owner)
			}
		}
		order = append(order, i)
	}
	for i := range known {
		visit(i)
	}
	return order
}

// Keeps says of a map that a version goes on to use although its owner cannot be asked for
// it, for the reason that err is.
func Keeps(from v1alpha1.MapSource, err error) string {
	why := err.Error()
	if wait := new(WaitError); errors.As(err, &wait) {
		why = fmt.Sprintf("application %s, which had map %s, is gone: %s", wait.Application, wait.Map, wait.Why)
	}
	return fmt.Sprintf("%s; the map stays until application %s has one for it again, or this application is unloaded", why, from.Application)
}
