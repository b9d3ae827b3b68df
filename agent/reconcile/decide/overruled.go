package decide

import (
	"errors"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// Overrule keeps an application that runs out of the chain of a device, unless TakeBack takes it back.
func Overrule(d *Decisions, on plan.Device, uid string, why error) {
	if d.Overruled[on] == nil {
		d.Overruled[on] = map[string]error{}
	}
	d.Overruled[on][uid] = why
	d.KeepOut(on, uid, why)
}

// TakeBack has those stay in the chain of a device that were overruled there.
func TakeBack(d *Decisions, on plan.Device) {
	for uid, why := range d.Overruled[on] {
		d.Want.Out[on] = slices.DeleteFunc(d.Want.Out[on], func(one string) bool { return one == uid })
		out := d.Outcome(uid)
		out.Errs = slices.DeleteFunc(out.Errs, func(err error) bool { return errors.Is(err, why) })
	}
	delete(d.Overruled, on)
}

// EndOverruled says of the links of those that are overruled why they are not there.
func EndOverruled(d *Decisions) {
	if len(d.Overruled) == 0 {
		return
	}
	for _, app := range d.Want.Applications {
		for i := range app.Attachments {
			a := &app.Attachments[i]
			if why := d.Overruled[a.Target.Device()][app.UID]; why != nil && a.Hook == plan.XDP {
				out := d.Outcome(app.UID)
				out.Leave(report.Retry{})
				out.Links = append(out.Links, report.Unmade{Program: a.Program,
					Status: report.LinkStatus{Hook: a.Hook, Target: a.Target.String(), State: report.Failed, Error: why.Error()}})
			}
		}
	}
}
