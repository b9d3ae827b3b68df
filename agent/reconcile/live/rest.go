package live

import (
	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/state/pins"
)

// Rest is every link as a Look found it, on a node where nothing is left to do. The kernel sends no event when somebody
// detaches a link or replaces its program, so sweeps compare these.
type Rest struct{ links []restingLink }

type restingLink struct {
	link  pins.Held
	facts pins.Facts
}

// Rest returns the links of a Look.
func (l *Look) Rest() *Rest {
	r := &Rest{}
	for one := range l.Links() {
		// Of filters, the kernel sends an event.
		if _, ok := one.Link.(*clsact.Filter); !ok {
			r.links = append(r.links, restingLink{one.Link, l.facts[one.Path]})
		}
	}
	for device, c := range l.Chains() {
		r.links = append(r.links, restingLink{c.Link, l.facts[l.Set.pins.ChainPath(device)]})
	}
	return r
}

// IsUnchanged reports whether the kernel says the same of every link as then.
func (r *Rest) IsUnchanged() bool {
	for _, l := range r.links {
		if facts, err := pins.Inspect(l.link); err != nil || facts != l.facts {
			return false
		}
	}
	return true
}
