package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/objects"
	"github.com/skep-dev/skep/agent/plan"
)

// fitChains loads the chain of every interface whose members change, before
// any link is touched. A newcomer that does not fit is rejected alone: its
// application goes on as it was, and the others as they are to.
func (rec *reconcile) fitChains() {
	rec.followStartedChains()
	rec.takeOutAgain()
	// Each turn of this loop rejects, takes out or leaves something more.
	for range (len(rec.apps) + 2) * (len(plan.WantedChains(rec.want, rec.look.State)) + 1) {
		misfit := rec.loadChains()
		if misfit == nil {
			return
		}
		misfit()
	}
}

// unfitChain makes the reconcile go on without what does not fit into a chain.
type unfitChain func()

// loadChains loads what changed, up to the first that does not fit.
func (rec *reconcile) loadChains() unfitChain {
	for _, want := range plan.WantedChains(rec.want, rec.look.State) {
		have := rec.look.Chain(want.Ifindex)
		running := rec.live.GivenTo(want.Ifindex)
		// What the link was given needs no load where only the link is healed.
		if len(want.Members) == 0 || have != nil && slices.Equal(have.Members, want.Members) || slices.Equal(running, want.Members) {
			continue
		}
		if v := rec.chains.versions[want.Ifindex]; v != nil {
			if slices.Equal(v.Members, want.Members) {
				continue
			}
			rec.releaseChosen(want.Ifindex)
		}
		if m := rec.waitForReplacements(want, running); m != nil {
			return m
		}
		if m := rec.fit(rec.chainToLoad(want), running); m != nil {
			return m
		}
	}
	return nil
}

// fit loads one chain.
func (rec *reconcile) fit(want plan.Chain, running []plan.Member) unfitChain {
	newcomers, suspect := rec.inOrder(want, plan.Newcomers(want.Members, running)), ""
	if n := len(newcomers); n > 0 {
		suspect = newcomers[n-1].UID
	}
	attempted := rec.chainKey(want.Ifindex, want.Members, suspect)
	if err := rec.attempts.Last(attempted, rec.now, rec.patience(want.Members, running)); err != nil {
		rec.abandonChain(want)
		return func() { rec.keepOrDetach(want, running, &backingOffError{err}) }
	}
	key, v, err := rec.loadChain(want.Ifindex, want.Members, running, suspect)
	if err == nil {
		rec.attempts.Forget(attempted)
		return rec.useLoaded(want, key, v)
	}
	if errors.Is(err, loads.ErrLoading) {
		return rec.awaitChain(want, running)
	}
	if lost := new(build.MemberError); errors.As(err, &lost) {
		rec.loads.Take(key)
		if !errors.Is(lost, objects.ErrFetching) {
			rec.abandonChain(want)
		}
		return rec.goOnWithout(want, running, lost)
	}
	if len(newcomers) == 0 {
		rec.loads.Take(key)
		rec.abandonChain(want)
		rec.attempts.Failed(attempted, rec.now, err)
		return func() { rec.keepOrDetach(want, running, err) }
	}
	return rec.exclude(want, running, newcomers, key, attempted, err)
}

// exclude takes the newcomer out of the reconcile that a chain cannot be loaded with:
// the last of the shortest run of newcomers, in their order of precedence, that the
// kernel rejects. It is searched by halves, so that n newcomers cost log n loads;
// those after it are tried in the next reconcile, when it is not.
func (rec *reconcile) exclude(want plan.Chain, running []plan.Member, newcomers []claim, all, attempted string, failure error) unfitChain {
	fits, refused, err, failures := 0, len(newcomers), failure, []string{all}
	for fits+1 < refused {
		middle := (fits + refused) / 2
		key, v, failed := rec.loadChain(want.Ifindex, plan.Without(want.Members, uidsOfClaims(newcomers[middle:])), running, newcomers[middle-1].UID)
		if errors.Is(failed, loads.ErrLoading) {
			return rec.awaitChain(want, running)
		}
		if failed != nil {
			refused, err, failures = middle, failed, append(failures, key)
			continue
		}
		fits = middle
		rec.endUse(key, v)
	}
	for _, key := range failures {
		// Its error was used: the next attempt is another load.
		rec.loads.Take(key)
	}
	rec.abandonChain(want)
	culprit, later := newcomers[refused-1], newcomers[refused:]
	if culprit.Seniority == plan.Running {
		rec.attempts.Failed(attempted, rec.now, err)
		return func() { rec.keepOrDetach(want, running, err) }
	}
	place := plan.Place{Hook: plan.XDP, Ifindex: want.Ifindex, Interface: want.Interface}
	return func() {
		rec.admission.rejectAt(place, culprit, err)
		for _, c := range later {
			rec.postpone(c.UID, fmt.Sprintf("it is queued: the kernel rejected %s with another application", place))
			rec.again = true
		}
	}
}

func uidsOfClaims(claims []claim) []string {
	var uids []string
	for _, c := range claims {
		uids = append(uids, c.UID)
	}
	return uids
}
