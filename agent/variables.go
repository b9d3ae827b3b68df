package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
)

// carryVariables takes the values of global variables over to the revisions
// that are about to run for the first time.
func (p *reconcile) carryVariables() {
	for _, want := range p.want.Applications {
		old := p.look.Revision(want.UID)
		next := p.live.Revisions[want.UID][want.Revision]
		if old == nil || next == nil || old == next || p.look.Runs(want.UID, want.Revision) {
			continue
		}
		if err := p.carryVariablesOf(want, old, next); err != nil {
			p.opts.Log.Error("carry variables", "application", want.Identity.String(), "error", err)
		}
	}
}

// carryVariablesOf holds the parsed objects of both revisions, and reads them only where a data
// section of theirs is not shared.
func (p *reconcile) carryVariablesOf(want plan.Application, old, next *kernel.Revision) error {
	o := p.intentOf(want.UID, want.Revision)
	if o == nil {
		return nil
	}
	if sections, err := kernel.SeparateSections(old, next); err != nil || len(sections) == 0 {
		return err
	}
	prepared, err := p.prepare(*o)
	if err != nil {
		return err
	}
	var was *kernel.Prepared
	if o := p.intentOf(want.UID, old.Name); o != nil {
		if was, err = p.prepare(*o); err != nil {
			p.opts.Log.Debug("read the object that runs; the kernel is asked", "application", want.Identity.String(), "error", err)
		}
	}
	carried, err := kernel.CarryVariables(prepared, was, old, next)
	for _, app := range p.apps {
		if app.Newest.Payload().UID != want.UID {
			continue
		}
		app.maps = slices.Clone(app.maps)
		for i := range app.maps {
			if names := carried[app.maps[i].Map]; len(names) > 0 {
				app.maps[i].Carried = names
			}
		}
	}
	return err
}
