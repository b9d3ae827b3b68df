package chainfit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
)

// goOnWithout makes the reconcile go on where members cannot be had, of which lost is the first. It stays as long
// as the chain can stay as it is: newcomers then wait. A member that must be unloaded and could
// not be switched off waits for no other, so that the members that cannot be had go, too, once their fetch ended. Nor does
// a program of the cluster wait for those of namespaces.
func (r *Round) goOnWithout(want plan.Chain, running []plan.Member, lost *build.MemberError) unfitChain {
	runs := func(uid string) bool {
		return slices.ContainsFunc(running, func(m plan.Member) bool { return m.UID == uid })
	}
	inTheWay := r.inTheClustersWay(want.Members, running, lost)
	switch isFetching := errors.Is(lost, objects.ErrFetching); {
	case len(inTheWay) > 0:
		return takeOut(r.decisions, want, inTheWay)
	case isFetching && !runs(lost.UID):
		// It waits alone: it is not in the chain, so the chain does without.
		return func() { r.decisions.Reject(lost.UID, lost) }
	case isFetching:
		return func() { r.decisions.Await(want, running, lost) }
	}
	leaves := slices.ContainsFunc(running, func(m plan.Member) bool { return r.runsGone(want.Device, m) })
	if leaves || !runs(lost.UID) {
		return func() {
			left := byUID(want.Members)
			for _, one := range r.allLost(want.Members, lost) {
				if needsNoLoad(left, r.look.Open) {
					return
				}
				switch isRunning := runs(one.UID); {
				case !isRunning && r.decisions.CanFallBack(one.UID):
					r.decisions.Reject(one.UID, one)
				case !isRunning || leaves:
					r.decisions.TakeOut(plan.Chain{Device: want.Device, Interface: want.Interface, Members: left[one.UID]}, one)
					delete(left, one.UID)
				}
			}
		}
	}
	if newcomers := plan.Newcomers(want.Members, running); len(newcomers) > 0 {
		if r.decisions.IsOnItsWay(lost.UID) {
			return func() {
				r.decisions.Postpone(newcomers[0], fmt.Sprintf("it waits for a version that is on its way and changes the chain of %s: %v", want.Interface,
					decide.Told(r.decisions, newcomers[0], lost)))
			}
		}
		return func() { r.decisions.Reject(newcomers[0], decide.Told(r.decisions, newcomers[0], lost)) }
	}
	return func() { r.decisions.Leave(want, running, lost) }
}

// inTheClustersWay returns the errors of the members of namespaces that run and cannot be had, where a program of the cluster
// that can be had is not in the chain as it is to be: one for each application. What is fetched for the first time is waited for, and where a
// member of the cluster cannot be had, no other one is in its way.
func (r *Round) inTheClustersWay(members, running []plan.Member, first *build.MemberError) (all []*build.MemberError) {
	isOrdered := slices.IsSortedFunc(running, func(a, b plan.Member) int { return cmp.Compare(a.Rank(), b.Rank()) })
	if !slices.ContainsFunc(members, func(m plan.Member) bool {
		if m.Identity.IsNamespaced() || isOrdered && slices.Contains(running, m) {
			return false
		}
		_, err := r.intentOf(m)
		return err == nil
	}) {
		return nil
	}
	runs, seen := byUID(running), map[string]bool{}
	for _, m := range members {
		if seen[m.UID] || runs[m.UID] == nil {
			continue
		}
		seen[m.UID] = true
		lost := first
		if _, err := r.intentOf(m); m.UID != first.UID && !errors.As(err, &lost) || errors.Is(lost, objects.ErrFetching) && !r.decisions.LostBefore(m.UID) {
			continue
		}
		if !m.Identity.IsNamespaced() {
			return nil
		}
		all = append(all, lost)
	}
	return all
}

// takeOut takes members out of a chain.
func takeOut(d *decide.Decisions, want plan.Chain, all []*build.MemberError) unfitChain {
	return func() {
		members := byUID(want.Members)
		for _, one := range all {
			d.TakeOut(plan.Chain{Device: want.Device, Interface: want.Interface, Members: members[one.UID]}, one)
		}
	}
}

// byUID are the members of each application.
func byUID(members []plan.Member) map[string][]plan.Member {
	all := make(map[string][]plan.Member, len(members))
	for i := range members {
		all[members[i].UID] = append(all[members[i].UID], members[i])
	}
	return all
}

// needsNoLoad reports whether one member is left that runs alone as it is in the kernel: its object may be lost.
func needsNoLoad(left map[string][]plan.Member, s *live.Open) bool {
	for _, members := range left {
		return len(left) == 1 && len(members) == 1 && programOf(members[0], s) != nil
	}
	return false
}

// allLost returns the errors of the members that cannot be had and are not on their way, one for each
// application: the one of which that is known, and others like it. A chain is not tried once for each of them.
func (r *Round) allLost(members []plan.Member, first *build.MemberError) []*build.MemberError {
	all, seen := []*build.MemberError{first}, map[string]bool{first.UID: true}
	for _, m := range members {
		if seen[m.UID] {
			continue
		}
		_, err := r.intentOf(m)
		if lost := new(build.MemberError); errors.As(err, &lost) && !errors.Is(err, objects.ErrFetching) {
			all, seen[m.UID] = append(all, lost), true
		}
	}
	return all
}
