package volumes

import (
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
		return nil, fmt.Errorf("%w: %s %s grants none of its maps (spec.maps.NAME.export) to service account %q of namespace %q; have its author list these "+
			"there in namespaces and serviceAccounts", ErrNotGranted, c.Application.Kind, c.Application, c.ServiceAccount, c.Namespace)
	case app.loaded == nil:
		return nil, fmt.Errorf("%w: %s %s is not loaded on this node: %s", ErrNotThere, c.Application.Kind, c.Application, app.why)
	}
	granted, refused := app.loaded.grants(app.payload)
	if has := c.of(granted); len(has) > 0 {
		return has, nil
	}
	var why []string
	for _, r := range refused {
		why = append(why, fmt.Sprintf("map %s for %s: %s", r.Map, r.Access, r.Reason))
	}
	return nil, fmt.Errorf("%w: of what is loaded of %s %s, no map is to be had: %s", ErrNotThere, c.Application.Kind, c.Application, strings.Join(why, "; "))
}
