package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
)

// goOnWithout makes the reconcile go on where one member cannot be had. It stays as long
// as the chain can stay as it is: who is new then waits. What is to be unloaded
// does not wait for others, so that a member that cannot be had goes, too.
func (r *chainRound) goOnWithout(want plan.Chain, running []plan.Member, lost *build.MemberError) unfitChain {
	if errors.Is(lost, objects.ErrFetching) {
		return func() { r.decisions.await(want, running, lost) }
	}
	runs := slices.ContainsFunc(running, func(m plan.Member) bool { return m.UID == lost.UID })
	leaves := slices.ContainsFunc(running, func(m plan.Member) bool { return r.decisions.isGone(m.UID) })
	if !runs && r.decisions.canFallBack(lost.UID) {
		return func() { r.decisions.reject(lost.UID, lost) }
	}
	if !runs || leaves {
		return func() { r.decisions.takeOut(want, lost) }
	}
	if newcomers := plan.Newcomers(want.Members, running); len(newcomers) > 0 {
		if r.decisions.isOnItsWay(lost.UID) {
			return func() {
				r.decisions.postpone(newcomers[0], fmt.Sprintf("it waits for a version that is on its way and changes the chain of %s: %v", want.Interface, lost))
			}
		}
		return func() { r.decisions.reject(newcomers[0], lost) }
	}
	return func() { r.decisions.leave(want, running, lost) }
}
