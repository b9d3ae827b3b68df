package chainfit

import (
	"errors"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// endGrace is how long the chain of the others is tried where it cannot be loaded and
// a member is to be unloaded. What hinders it may pass, as a want of memory does.
const endGrace = 30 * time.Second

// blockedChain is an interface whose chain cannot be loaded without a member that must be
// unloaded and still runs.
type blockedChain struct {
	since time.Time
	// out are the applications that are taken out so that the member goes, each with
	// the reason; the last one last.
	out []*build.MemberError
}

// keepOrDetach keeps a chain that cannot be loaded as it is. Where a member must be unloaded
// and could not be switched off, it does so for endGrace, and then takes out one member after
// the other, each after an attempt of its own: the last one left needs no load.
func (r *Round) keepOrDetach(want plan.Chain, running []plan.Member, err error) {
	r.Waiting.Fail(want.Device, err)
	if !r.expels(want, running) {
		r.decisions.Leave(want, running, err)
		return
	}
	h := r.blocked[want.Device]
	if h == nil {
		h = &blockedChain{since: r.now}
		r.blocked[want.Device] = h
	}
	if late := new(decide.BackingOffError); errors.As(err, &late) || r.now.Sub(h.since) < endGrace {
		r.decisions.Leave(want, running, err)
		return
	}
	lost := &build.MemberError{UID: r.culprit(want, err), Err: err}
	h.out = append(h.out, lost)
	r.decisions.TakeOut(want, lost)
}

// takeOutAgain leaves out what was taken out of a chain in an earlier reconcile, until what
// must be unloaded has gone from it, or is switched off.
func (r *Round) takeOutAgain() {
	for index, h := range r.blocked {
		want := r.chains.Of(index)
		if !r.expels(want, r.look.GivenTo(index)) {
			delete(r.blocked, index)
			continue
		}
		for _, lost := range h.out {
			r.decisions.TakeOut(want, lost)
		}
	}
}

// expels reports whether a chain ends a member that must be unloaded and still runs.
func (r *Round) expels(want plan.Chain, running []plan.Member) bool {
	leavers := plan.Leavers(want.Members, running)
	return slices.ContainsFunc(running, func(m plan.Member) bool {
		return slices.Contains(leavers, m.UID) && r.runsGone(want.Device, m)
	})
}

// runsGone reports whether a member must be unloaded and is not switched off: only then may it
// take others out of the chain.
func (r *Round) runsGone(d plan.Device, m plan.Member) bool {
	return r.decisions.IsGone(m.UID) && !r.look.IsOff(d, m)
}

// culprit is the application to take out of a chain that cannot be loaded: the one
// whose own program is at fault, else the last in precedence.
func (r *Round) culprit(want plan.Chain, err error) string {
	if refusal := new(chain.Rejection); errors.As(err, &refusal) && refusal.Limit == chain.LimitType {
		if i := slices.Index(build.MemberKeys(want.Members), refusal.Member); i >= 0 {
			return want.Members[i].UID
		}
	}
	claims := r.admission.Precedence(want, plan.UIDsOf(want.Members))
	return claims[len(claims)-1].UID
}
