package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/readers/grants"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/skepmap"
)

// Claim is whose volume one is, and of which application: as the kubelet says it.
type Claim struct {
	Namespace      string            `json:"namespace"`
	Pod            string            `json:"pod"`
	ServiceAccount string            `json:"serviceAccount"`
	Application    v1alpha1.Identity `json:"application"`
	// Maps are the names of the maps that the volume is to have of those that are granted, sorted, with commas between them. Empty is all.
	Maps string `json:"maps,omitempty"`
}

// asks reports whether a volume is to have a map where it is granted.
func (c Claim) asks(name string) bool {
	return c.Maps == "" || slices.Contains(strings.Split(c.Maps, ","), name)
}

// ErrNotGranted is the error of a pod that was granted no map.
var ErrNotGranted = errors.New("no map is granted")

// ErrNotThere is the error of an application that this node does not have, or not yet.
var ErrNotThere = errors.New("it is not there")

// access is what a claim has of a map.
type access struct {
	name string
	to   skepmap.Access
}

func (a access) isWritable() bool { return a.to != skepmap.Read }

// of returns what a claim has of the grants that apply, in their order.
func (c Claim) of(all []grants.Map) (has []access) {
	for _, m := range all {
		if !c.asks(m.Name) {
			continue
		}
		best := access{name: m.Name}
		for _, g := range m.Grants {
			if c.matches(g) && (best.to == "" || best.to == skepmap.Read) {
				best.to = skepmap.Access(g.Access)
			}
		}
		if best.to != "" {
			has = append(has, best)
		}
	}
	return has
}

// matches reports whether a grant is for the claim's pod.
func (c Claim) matches(g grants.Grant) bool {
	return slices.Contains(g.Namespaces, c.Namespace) && (len(g.ServiceAccounts) == 0 || slices.Contains(g.ServiceAccounts, c.ServiceAccount))
}

// granted is what the newest intent grants the claim, whatever is loaded.
func (c Claim) granted(p intent.Payload) []access {
	var all []grants.Map
	for name, m := range p.Maps {
		one := grants.Map{Name: name}
		for _, e := range m.Export {
			g := grants.Grant(e)
			if c.Application.IsNamespaced() && len(g.Namespaces) == 0 {
				g.Namespaces = []string{c.Application.Namespace}
			}
			if !p.Tombstone && (!c.Application.IsNamespaced() || c.Namespace == c.Application.Namespace) {
				one.Grants = append(one.Grants, g)
			}
		}
		all = append(all, one)
	}
	return c.of(all)
}

// rights are those that a claim has, as far as they can be found out without reading an object. all are the grants that apply.
func (c Claim) rights(app *application, all func(*application) []grants.Map) map[string]right {
	if app == nil || app.loaded == nil || len(c.granted(app.payload)) == 0 {
		return nil
	}
	has := map[string]right{}
	for _, a := range c.of(all(app)) {
		has[a.name] = right{app.loaded.maps[a.name].ID, a.to}
	}
	return has
}

// wanted is what a claim has of an application, or an error why it has nothing: one that wraps ErrNotGranted is for the author of the
// pod or of the application, and one that wraps ErrNotThere may not come again.
func (c Claim) wanted(app *application) ([]access, error) {
	switch {
	case app == nil:
		return nil, fmt.Errorf("%w: this node has no intent for %s %s: the application does not exist, is not allowed, has not come here yet, or its "+
			"nodeSelector leaves this node out; look at its status", ErrNotThere, c.Application.Kind, c.Application)
	case len(c.granted(app.payload)) == 0:
		which := "none of its maps"
		if c.Maps != "" {
			which = "none of the maps that the volume names (" + c.Maps + ")"
		}
		return nil, c.notGranted(which, "NAME")
	case app.loaded == nil:
		return nil, fmt.Errorf("%w: %s %s is not loaded on this node: %s", ErrNotThere, c.Application.Kind, c.Application, app.why)
	}
	granted, refused := app.loaded.grants(app.payload)
	if has := c.of(granted); len(has) > 0 {
		return has, nil
	}
	return nil, fmt.Errorf("%w: of what is loaded of %s %s, no map is to be had: %s", ErrNotThere, c.Application.Kind, c.Application, why(refused))
}

// why is why maps are refused.
func why(refused []grants.Refused) string {
	var all []string
	for _, r := range refused {
		all = append(all, fmt.Sprintf("map %s for %s: %s", r.Map, r.Access, r.Reason))
	}
	return strings.Join(all, "; ")
}

// notGranted is the error of maps that an application does not grant to a claim.
func (c Claim) notGranted(which, field string) error {
	return fmt.Errorf("%w: %s %s grants %s (spec.maps.%s.export) to service account %q of namespace %q; have its author list these "+
		"there in namespaces and serviceAccounts", ErrNotGranted, c.Application.Kind, c.Application, which, field, c.ServiceAccount, c.Namespace)
}

// all returns an error where a claim names a map that is not among those it has. It is asked before a volume is mounted; one that is keeps
// what remains to it.
func (c Claim) all(app *application, has content) error {
	if c.Maps == "" {
		return nil
	}
	granted, there := c.granted(app.payload), has.has()
	for name := range strings.SplitSeq(c.Maps, ",") {
		switch _, is := there[name]; {
		case is:
		case !slices.ContainsFunc(granted, func(a access) bool { return a.name == name }):
			return c.notGranted("no map "+name, name)
		default:
			_, refused := app.loaded.grants(app.payload)
			refused = slices.DeleteFunc(refused, func(r grants.Refused) bool { return r.Map != name })
			return fmt.Errorf("%w: map %s is not to be had of what is loaded of %s %s: %s", ErrNotThere, name, c.Application.Kind, c.Application,
				cmp.Or(why(refused), "the version that runs does not have it"))
		}
	}
	return nil
}
