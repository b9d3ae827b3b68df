package agent

import (
	"errors"
	"slices"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
)

// fitChains loads the chain of every interface whose members change, before
// any link is touched. A newcomer that does not fit is refused alone: its
// application goes on as it was, and the others as they are to.
func (p *reconcile) fitChains() {
	p.followStartedChains()
	p.takeOutAgain()
	// Each reconcile refuses, takes out or leaves something more.
	for range (len(p.apps) + 2) * (len(plan.WantedChains(p.want, p.look.State)) + 1) {
		misfit := p.loadChains()
		if misfit == nil {
			return
		}
		misfit()
	}
}

// unfitChain makes the reconcile go on without what does not fit into a chain.
type unfitChain func()

// loadChains loads what changed, up to the first that does not fit.
func (p *reconcile) loadChains() unfitChain {
	for _, want := range plan.WantedChains(p.want, p.look.State) {
		have := p.look.Chain(want.Ifindex)
		running := p.live.GivenTo(want.Ifindex)
		// What the link was given needs no load where only the link is healed.
		if len(want.Members) == 0 || have != nil && slices.Equal(have.Members, want.Members) || slices.Equal(running, want.Members) {
			continue
		}
		if v := p.chains.versions[want.Ifindex]; v != nil {
			if slices.Equal(v.Members, want.Members) {
				continue
			}
			p.releaseChosen(want.Ifindex)
		}
		if m := p.waitForReplacements(want, running); m != nil {
			return m
		}
		if m := p.fit(p.chainToLoad(want), running); m != nil {
			return m
		}
	}
	return nil
}

// fit loads one chain.
func (p *reconcile) fit(want plan.Chain, running []plan.Member) unfitChain {
	newcomers, suspect := p.inOrder(want, plan.Newcomers(want.Members, running)), ""
	if n := len(newcomers); n > 0 {
		suspect = newcomers[n-1].UID
	}
	attempted := p.chainKey(want.Ifindex, want.Members, suspect)
	if err := p.attempts.Last(attempted, p.now, p.patience(want.Members, running)); err != nil {
		p.abandonChain(want)
		return func() { p.keepOrDetach(want, running, &backingOffError{err}) }
	}
	key, v, err := p.loadChain(want.Ifindex, want.Members, running, suspect)
	if err == nil {
		p.attempts.Forget(attempted)
		return p.useLoaded(want, key, v)
	}
	if errors.Is(err, loads.ErrLoading) {
		return p.awaitChain(want, running)
	}
	if lost := new(build.MemberError); errors.As(err, &lost) {
		p.loads.Take(key)
		if !errors.Is(lost, objects.ErrFetching) {
			p.abandonChain(want)
		}
		return p.goOnWithout(want, running, lost)
	}
	if len(newcomers) == 0 {
		p.loads.Take(key)
		p.abandonChain(want)
		p.attempts.Failed(attempted, p.now, err)
		return func() { p.keepOrDetach(want, running, err) }
	}
	return p.exclude(want, running, newcomers, key, attempted, err)
}
