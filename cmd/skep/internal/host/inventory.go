package host

import (
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// Programs describes the programs of this kernel as a node does, with all pins. Whose they are is read from their pins, and of which
// application from the label beside them, which is no proof.
func Programs(all inventory.Inventory) (programs []view.Program) {
	for i := range all.Programs {
		p := &all.Programs[i]
		one := nodeview.Program(p)
		one.Chain, one.Pins = p.Managed, p.Pins
		if p.Managed && p.Owner != nil && p.Owner.App != "" {
			one.Application = &v1alpha1.Identity{Name: p.Owner.App}
		}
		for _, h := range p.Holders {
			one.Holders = append(one.Holders, view.Process{PID: h.PID, Name: h.Name})
		}
		programs = append(programs, one)
	}
	return programs
}
