package chainfit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// leaveOutJoiners leaves applications out of a chain that the interface did not take a short while ago: those that the
// driver does not take, or the later half of those that join it. So no update and no ending waits for an application that
// joins, and the one at fault is found by halves.
func (r *Round) leaveOutJoiners(want plan.Chain, running []plan.Member) unfitChain {
	failure := r.attempts.Last(plan.Action{Verb: plan.SetChain, Interface: want.Interface, Members: want.Members}.String(), r.now, r.longest)
	if failure == nil {
		return nil
	}
	if refused := new(attach.DriverError); errors.As(failure, &refused) {
		if m := r.leaveOutUnaware(want, running, refused); m != nil {
			return m
		}
	} else if len(running) == 0 {
		// No member that runs waits for them.
		return nil
	}
	joiners := r.admission.Precedence(want, plan.UIDsOf(plan.Without(want.Members, plan.UIDsOf(running))))
	switch n := len(joiners); {
	case n == 0 || n == 1 && len(running) == 0:
		return nil
	case n == 1:
		return r.reject(want, joiners, func(c admission.Claim) error {
			return fmt.Errorf("join the chain of %s: %w", want.Interface, decide.Told(r.decisions, c.UID, failure))
		})
	default:
		return func() {
			for _, one := range joiners[(n+1)/2:] {
				r.Waiting.postpone(one.UID, want.Device,
					fmt.Sprintf("it is queued: the kernel did not attach the chain of %s with it and others: %v", want.Interface,
						decide.Told(r.decisions, one.UID, failure)))
			}
		}
	}
}

// LeavesOut reports whether the next reconcile leaves applications out of a chain that the interface did not take, and goes on
// with the others. It asks what that one asks: of a failure that is not remembered, such as a contested link's, nothing follows.
func (r *Round) LeavesOut(a plan.Action) bool {
	want := plan.Chain{Device: a.Device, Interface: a.Interface, Members: a.Members}
	return len(a.Members) > 0 && r.leaveOutJoiners(want, r.look.GivenTo(a.Device)) != nil
}

// leaveOutUnaware leaves out the newcomers that take no packets of several buffers, where all others of the chain do: then the
// driver does not take the chain because of them.
func (r *Round) leaveOutUnaware(want plan.Chain, running []plan.Member, refused *attach.DriverError) unfitChain {
	parts, err := r.parts(want.Members, "")
	if err != nil {
		return nil
	}
	unaware, err := build.Unaware(parts, r.objectRound.Cache)
	if err != nil || len(unaware) == 0 || len(unaware) == len(want.Members) {
		return nil
	}
	keys := map[string]string{}
	for _, m := range unaware {
		if plan.IsNew(m, running) && keys[m.UID] == "" {
			keys[m.UID] = build.MemberKeys(want.Members)[slices.Index(want.Members, m)]
		}
	}
	culprits := r.admission.Precedence(want, slices.DeleteFunc(plan.UIDsOf(want.Members), func(uid string) bool { return keys[uid] == "" }))
	if len(culprits) == 0 {
		return nil
	}
	if m := leaveOutNative(r.decisions, want, culprits, refused); m != nil {
		return m
	}
	return r.reject(want, culprits, func(c admission.Claim) error {
		return &chain.Rejection{Member: keys[c.UID], Limit: chain.LimitFrags,
			Reason: fmt.Sprintf("the driver of %s runs a chain at MTU %d only if each program takes packets of several buffers, and this one does not",
				want.Interface, refused.MTU),
			Fix: `build it as SEC("xdp.frags"), lower the MTU, or have no program of the interface ask for xdpMode Native`,
			Err: refused.Err}
	})
}

// leaveOutNative leaves out the programs of namespaces that ask for the driver, where only they do and one of the cluster would be
// left out for it.
func leaveOutNative(d *decide.Decisions, want plan.Chain, culprits []admission.Claim, refused *attach.DriverError) unfitChain {
	native := slices.DeleteFunc(slices.Clone(want.Members), func(m plan.Member) bool { return m.Mode != v1alpha1.XDPNative })
	if len(native) == 0 || slices.ContainsFunc(native, func(m plan.Member) bool { return !m.Identity.IsNamespaced() }) ||
		!slices.ContainsFunc(culprits, func(c admission.Claim) bool { return !c.Identity.IsNamespaced() }) {
		return nil
	}
	why := fmt.Errorf("run in the chain of %s: it asks for xdpMode Native, and the driver does not take a program of a %s beside it; "+
		"leave xdpMode out to follow: %w", want.Interface, v1alpha1.KindClusterBpfApplication, refused)
	return func() {
		for _, uid := range plan.UIDsOf(native) {
			d.KeepOut(want.Device, uid, why)
		}
	}
}

func (r *Round) reject(want plan.Chain, claims []admission.Claim, why func(admission.Claim) error) unfitChain {
	place := plan.Place{Hook: plan.XDP, Device: want.Device, Interface: want.Interface}
	return func() {
		for _, c := range claims {
			r.admission.RejectAt(place, c, why(c))
		}
	}
}
