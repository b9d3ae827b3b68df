package admission

import (
	"io"
	"time"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/intent"
)

// measureAgain is how long a revision that could not be measured is left alone.
const measureAgain = time.Minute

// Profiles are what revisions in the kernel take of a chain, by uid and name.
type Profiles struct {
	byRevision map[[2]string]chain.Profile
	// unmeasured is when those could not be measured that could not.
	unmeasured map[[2]string]time.Time
}

// Forget forgets what is known of a revision that is no more in the kernel.
func (p *Profiles) Forget(uid, revision string) {
	id := [2]string{uid, revision}
	delete(p.byRevision, id)
	delete(p.unmeasured, id)
}

// Put keeps what a revision takes.
func (p *Profiles) Put(uid, revision string, taken chain.Profile) {
	p.byRevision[[2]string{uid, revision}] = taken
}

// profileOf returns what is known of a revision in the kernel, and has it measured
// where nothing is.
func (adm *Round) profileOf(uid, revision string) chain.Profile {
	id := [2]string{uid, revision}
	if known, ok := adm.Profiles.byRevision[id]; ok {
		return known
	}
	o := adm.decisions.IntentOf(uid, revision)
	if o == nil || adm.look.Set.Revisions[uid][revision] == nil || adm.now.Sub(adm.Profiles.unmeasured[id]) < measureAgain {
		return chain.Profile{}
	}
	// Nothing is fetched for this.
	if !adm.Objects.Has(o.Payload().ObjectDigest) {
		return chain.Profile{}
	}
	key := "profile of " + build.Key(uid, revision)
	got, err := build.Get[build.Profile](adm.loadRound, key, func() (build.Request, error) { return adm.askProfile(*o), nil })
	if decide.IsPending(err) {
		return chain.Profile{}
	}
	adm.loadRound.Take(key)
	if err != nil {
		adm.Log.Error("measure what programs take; they count as programs alone", "application", o.Payload().Application.String(), "error", err)
		adm.Profiles.unmeasured[id] = adm.now
		return chain.Profile{}
	}
	adm.Profiles.byRevision[id] = got.Profile
	return adm.Profiles.byRevision[id]
}

// askProfile asks for a revision to be measured. It waits in turn with the loads of
// its namespace.
func (adm *Round) askProfile(o intent.Opened) build.Request {
	files := adm.Objects
	return build.Request{
		Line: "profile of application " + o.Payload().UID, Tenants: []string{o.Payload().Application.Namespace},
		Start: func() (build.Run, error) {
			return func(build.Turn) (io.Closer, error) {
				return build.Measure(o, files)
			}, nil
		},
	}
}
