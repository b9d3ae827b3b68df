// Package chainfit fits the XDP programs of applications into one chain for each interface. It
// has chains loaded, finds the member that one cannot be loaded with, and keeps what runs until
// the next chain is loaded. It sets no chain: package act does.
package chainfit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/agenda"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/agent/state/retry"
)

// Fitter is what is known of the chains of interfaces. It lasts as long as the agent.
type Fitter struct {
	// longest is how long a load that failed is at most not tried again.
	longest time.Duration
	// Build links and loads a chain; tests replace it.
	Build func([]build.Part, *objects.Cache, chain.Options, build.SharedMaps, build.Turn) (*pins.ChainVersion, error)
	// attempts are the loads of chains that failed.
	attempts *retry.Attempts
	// started and blocked are by device.
	started map[plan.Device]*startedChain
	blocked map[plan.Device]*blockedChain
}

// New returns a Fitter that knows nothing yet. attempts are the loads of chains that failed.
func New(longest time.Duration, attempts *retry.Attempts) *Fitter {
	return &Fitter{longest: longest, Build: build.Chain, attempts: attempts, started: map[plan.Device]*startedChain{}, blocked: map[plan.Device]*blockedChain{}}
}

// Round is what one reconcile chooses for the chains of interfaces, by device.
type Round struct {
	*Fitter
	now       time.Time
	decisions *decide.Decisions
	// admission says which newcomer has precedence.
	admission   *admission.Round
	look        *live.Look
	objectRound *objects.Round
	loadRound   *build.Round
	// chains are those that are wanted, as of the last decision.
	chains *plan.Chains
	// versions are the chains that were loaded for it, and versionKeys name their loads;
	// a chain of one program has none, and no program before it is handed over.
	versions    map[plan.Device]*pins.ChainVersion
	versionKeys map[plan.Device]string
	// revisionKeys are those of revisions, by uid and name.
	revisionKeys revisionKeys
	// visited are the interfaces whose chain was looked at. wanted is what is wanted where
	// a chain that was started comes first.
	visited map[plan.Device]bool
	wanted  map[plan.Device][]plan.Member
	// Waiting are those that wait for the chain of others.
	Waiting *Waiting
}

// Begin begins to choose.
func (f *Fitter) Begin(d *decide.Decisions, adm *admission.Round, objectRound *objects.Round, loadRound *build.Round) *Round {
	return &Round{Fitter: f, now: d.Now, decisions: d, admission: adm, look: d.Look, objectRound: objectRound, loadRound: loadRound,
		versions: map[plan.Device]*pins.ChainVersion{}, versionKeys: map[plan.Device]string{}, revisionKeys: revisionKeys{},
		visited: map[plan.Device]bool{}, wanted: map[plan.Device][]plan.Member{},
		Waiting: &Waiting{decisions: d, behind: map[plan.Device]bool{}, postponed: map[plan.Device][]string{}}}
}

// Fit loads the chain of every interface whose members change, before
// any link is touched. A newcomer that does not fit is rejected alone: its
// application goes on as it was, and the others as they are to.
func (r *Round) Fit() {
	defer decide.EndOverruled(r.decisions)
	r.decisions.Changed = nil
	r.chains = plan.NewChains(&r.decisions.Want, r.look.State())
	r.followStartedChains()
	r.takeOutAgain()
	devices := r.chains.Devices()
	left := agenda.New(devices)
	// Each misfit rejects, takes out or leaves something more.
	for most := (len(r.decisions.Applications) + 2) * (len(devices) + 1); most > 0; {
		d, ok := left.Next()
		if !ok {
			return
		}
		misfit := r.fit(r.chains.Of(d))
		if misfit == nil {
			continue
		}
		misfit()
		most--
		left.Add(d)
		for _, uid := range r.decisions.Changed {
			var app *plan.Application
			if i := r.decisions.IndexOf(uid); i >= 0 {
				app = &r.decisions.Want.Applications[i]
			}
			for _, d := range r.chains.Follow(uid, app, r.decisions.IsFrozen(uid)) {
				left.Add(d)
			}
		}
		r.decisions.Changed = nil
	}
}

// unfitChain makes the reconcile go on without what does not fit into a chain.
type unfitChain func()

// fit loads a chain that changed, unless something does not fit into it.
func (r *Round) fit(want plan.Chain) unfitChain {
	have := r.look.SeenChain(want.Device)
	running := r.look.GivenTo(want.Device)
	if len(r.decisions.Overruled[want.Device]) > 0 && !slices.ContainsFunc(want.Members, func(m plan.Member) bool {
		return !m.Identity.IsNamespaced() && m.Mode != ""
	}) {
		// The one that chose the mode is yet to be loaded, or does not fit.
		return func() { decide.TakeBack(r.decisions, want.Device) }
	}
	// What the link was given needs no load where only the link is healed.
	if len(want.Members) == 0 || have != nil && slices.Equal(have.Members, want.Members) || slices.Equal(running, want.Members) {
		return nil
	}
	if v := r.versions[want.Device]; v != nil {
		if slices.Equal(v.Members, want.Members) {
			return nil
		}
		delete(r.versions, want.Device)
		delete(r.versionKeys, want.Device)
	}
	if m := r.leaveOutJoiners(want, running); m != nil {
		return m
	}
	if m := r.waitForReplacements(want, running); m != nil {
		return m
	}
	return r.fitOne(r.chainToLoad(want), running)
}

// fitOne loads one chain.
func (r *Round) fitOne(want plan.Chain, running []plan.Member) unfitChain {
	newcomers, suspect := r.inOrder(want, plan.Newcomers(want.Members, running)), ""
	if n := len(newcomers); n > 0 {
		suspect = newcomers[n-1].UID
	}
	attempted := r.chainKey(want.Device, want.Members, suspect)
	wanted, others := r.wanted[want.Device]
	overtaken := others && !slices.Equal(wanted, want.Members)
	if err := r.attempts.Last(attempted, r.now, r.patience(want.Members, running)); err != nil {
		r.abandonChain(want)
		return r.unlessOvertaken(overtaken, func() { r.keepOrDetach(want, running, &decide.BackingOffError{Err: err}) })
	}
	key, v, err := r.load(attempted, want.Device, want.Members, running, suspect)
	if err == nil {
		r.attempts.Forget(attempted)
		return r.useLoaded(want, key, v)
	}
	if errors.Is(err, build.ErrLoading) {
		return r.awaitChain(want, running)
	}
	if lost := new(build.MemberError); errors.As(err, &lost) {
		r.loadRound.Take(key)
		if !errors.Is(lost, objects.ErrFetching) {
			r.abandonChain(want)
		}
		return r.goOnWithout(want, running, lost)
	}
	if len(newcomers) == 0 {
		r.loadRound.Take(key)
		r.abandonChain(want)
		r.attempts.Failed(attempted, r.now, err)
		return r.unlessOvertaken(overtaken, func() { r.keepOrDetach(want, running, err) })
	}
	return r.exclude(want, running, newcomers, key, attempted, err)
}

// unlessOvertaken is what follows from a chain that cannot be loaded: nothing, where something else is wanted by now, which is
// tried instead. Who waits for that is not reported as if it ran.
func (r *Round) unlessOvertaken(overtaken bool, follows unfitChain) unfitChain {
	if overtaken {
		return func() {}
	}
	return follows
}

// exclude takes the newcomer out of the reconcile that a chain cannot be loaded with:
// the last of the shortest run of newcomers, in their order of precedence, that the
// kernel rejects. It is searched by halves, so that n newcomers cost log n loads;
// those after it are tried in the next reconcile, when it is not.
func (r *Round) exclude(want plan.Chain, running []plan.Member, newcomers []admission.Claim, all, attempted string, failure error) unfitChain {
	fits, refused, err, failures := 0, len(newcomers), failure, []string{all}
	for fits+1 < refused {
		middle := (fits + refused) / 2
		members, suspect := plan.Without(want.Members, uidsOfClaims(newcomers[middle:])), newcomers[middle-1].UID
		key, _, failed := r.load(r.chainKey(want.Device, members, suspect), want.Device, members, running, suspect)
		if errors.Is(failed, build.ErrLoading) {
			return r.awaitChain(want, running)
		}
		if failed != nil {
			refused, err, failures = middle, failed, append(failures, key)
			continue
		}
		fits = middle
	}
	for _, key := range failures {
		// Its error was used: the next attempt is another load.
		r.loadRound.Take(key)
	}
	r.abandonChain(want)
	culprit, later := newcomers[refused-1], newcomers[refused:]
	if culprit.Seniority == plan.Running {
		r.attempts.Failed(attempted, r.now, err)
		return func() { r.keepOrDetach(want, running, err) }
	}
	place := plan.Place{Hook: plan.XDP, Device: want.Device, Interface: want.Interface}
	return func() {
		r.admission.RejectAt(place, culprit, decide.Told(r.decisions, culprit.UID, err))
		for _, c := range later {
			r.decisions.Postpone(c.UID, fmt.Sprintf("it is queued: the kernel rejected %s with another application", place))
			r.decisions.Again = true
		}
	}
}

func uidsOfClaims(claims []admission.Claim) []string {
	var uids []string
	for _, c := range claims {
		uids = append(uids, c.UID)
	}
	return uids
}
