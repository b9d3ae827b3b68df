package chainfit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
)

// goOnWithout makes the reconcile go on where one member cannot be had. It stays as long
// as the chain can stay as it is: newcomers then wait. A member that must be unloaded and could
// not be switched off waits for no other, so that the member that cannot be had goes, too.
func (r *Round) goOnWithout(want plan.Chain, running []plan.Member, lost *build.MemberError) unfitChain {
	if errors.Is(lost, objects.ErrFetching) {
		return func() { r.decisions.Await(want, running, lost) }
	}
	runs := slices.ContainsFunc(running, func(m plan.Member) bool { return m.UID == lost.UID })
	leaves := slices.ContainsFunc(running, func(m plan.Member) bool { return r.runsGone(want.Device, m) })
	if !runs && r.decisions.CanFallBack(lost.UID) {
		return func() { r.decisions.Reject(lost.UID, lost) }
	}
	if !runs || leaves {
		return func() { r.decisions.TakeOut(want, lost) }
	}
	if newcomers := plan.Newcomers(want.Members, running); len(newcomers) > 0 {
		if r.decisions.IsOnItsWay(lost.UID) {
			return func() {
				r.decisions.Postpone(newcomers[0], fmt.Sprintf("it waits for a version that is on its way and changes the chain of %s: %v", want.Interface, lost))
			}
		}
		return func() { r.decisions.Reject(newcomers[0], lost) }
	}
	return func() { r.decisions.Leave(want, running, lost) }
}
