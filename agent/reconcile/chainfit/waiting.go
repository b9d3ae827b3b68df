package chainfit

import (
	"fmt"

	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// Waiting are the applications that wait until the chain of others is set, by interface.
type Waiting struct {
	decisions *decide.Decisions
	// behind are the interfaces where applications wait, and postponed are those that wait for nothing else.
	behind    map[plan.Device]bool
	postponed map[plan.Device][]string
}

// On reports whether applications wait on an interface.
func (w *Waiting) On(d plan.Device) bool { return w.behind[d] }

// postpone has an application wait.
func (w *Waiting) postpone(uid string, d plan.Device, why string) {
	w.behind[d] = true
	w.postponed[d] = append(w.postponed[d], uid)
	w.decisions.Postpone(uid, why)
}

// Fail reports to the applications that wait on an interface why its chain could not be changed. Where that only takes time,
// what they were told before holds on.
func (w *Waiting) Fail(d plan.Device, err error) {
	for _, uid := range w.postponed[d] {
		out := w.decisions.Outcome(uid)
		if out.Leave(report.Behind{}); decide.IsPending(err) {
			continue
		}
		out.Refuse(fmt.Errorf("change the chain of %s: it waits for the programs of others there: %w", w.decisions.Look.InterfaceName(d),
			decide.Told(w.decisions, uid, err)))
	}
	if !decide.IsPending(err) {
		delete(w.postponed, d)
	}
}
