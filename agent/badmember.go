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
func (rec *reconcile) goOnWithout(want plan.Chain, running []plan.Member, lost *build.MemberError) unfitChain {
	if errors.Is(lost, objects.ErrFetching) {
		return func() { rec.await(want, running, lost) }
	}
	runs := slices.ContainsFunc(running, func(m plan.Member) bool { return m.UID == lost.UID })
	leaves := slices.ContainsFunc(running, func(m plan.Member) bool { return rec.isGone(m.UID) })
	if !runs && rec.canFallBack(lost.UID) {
		return func() { rec.reject(lost.UID, lost) }
	}
	if !runs || leaves {
		return func() { rec.takeOut(want, lost) }
	}
	if newcomers := plan.Newcomers(want.Members, running); len(newcomers) > 0 {
		if rec.isOnItsWay(lost.UID) {
			return func() {
				rec.postpone(newcomers[0], fmt.Sprintf("it waits for a version that is on its way and changes the chain of %s: %v", want.Interface, lost))
			}
		}
		return func() { rec.reject(newcomers[0], lost) }
	}
	return func() { rec.leave(want, running, lost) }
}
