package act

import (
	"slices"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/intent"
)

// variables carries the values of global variables from one revision to the next.
type variables struct{ *Options }

// carryVariables takes the values of global variables over to the revisions
// that are about to run for the first time.
func (va *variables) carryVariables() {
	for _, want := range va.Decisions.Want.Applications {
		old := va.Look.BaseRevision(want.UID)
		next := va.Look.Revision(want.UID, want.Revision)
		if old == nil || next == nil || old == next || va.Look.Runs(want.UID, want.Revision) {
			continue
		}
		if err := va.carryVariablesOf(want, old, next); err != nil {
			va.Log.Error("carry variables", "application", want.Identity.String(), "error", err)
		}
	}
}

// carryVariablesOf holds the parsed objects of both revisions, and reads them only where a data
// section of theirs is not shared.
func (va *variables) carryVariablesOf(want plan.Application, old, next *loader.Revision) error {
	o := va.Decisions.IntentOf(want.UID, want.Revision)
	if o == nil {
		return nil
	}
	if sections, err := loader.SeparateSections(old, next); err != nil || len(sections) == 0 {
		return err
	}
	prepared, err := va.prepare(*o)
	if err != nil {
		return err
	}
	var was *loader.Prepared
	if o := va.Decisions.IntentOf(want.UID, old.Name); o != nil {
		if was, err = va.prepare(*o); err != nil {
			va.Log.Debug("read the object that runs; the kernel is asked", "application", want.Identity.String(), "error", err)
		}
	}
	carried, err := loader.CarryVariables(prepared, was, old, next)
	if app := va.Decisions.Application(want.UID); app != nil {
		app.Maps = slices.Clone(app.Maps)
		for i := range app.Maps {
			if names := carried[app.Maps[i].Map]; len(names) > 0 {
				app.Maps[i].Carried = names
			}
		}
	}
	return err
}

// prepare reads and parses the intent's object. What it returns may be as large as
// the sections that the object declares: it is not kept.
func (va *variables) prepare(o intent.Opened) (*loader.Prepared, error) {
	object, err := va.ObjectRound.Read(o.Payload())
	if err != nil {
		return nil, err
	}
	return loader.Prepare(o, object)
}
