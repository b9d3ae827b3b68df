package admission

import (
	"io"
	"log/slog"
	"time"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/intent"
)

// measureAgain is how long a revision that could not be measured is left alone.
const measureAgain = time.Minute

// Profiles are what revisions in the kernel take of a chain, by uid and name.
type Profiles struct {
	log        *slog.Logger
	objects    *objects.Cache
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
	if known, ok := adm.Profiles.byRevision[[2]string{uid, revision}]; ok {
		return known
	}
	o := adm.decisions.IntentOf(uid, revision)
	if o == nil || adm.look.Revision(uid, revision) == nil {
		return chain.Profile{}
	}
	return adm.Profiles.measure(*o, adm.loadRound, adm.now)
}

// measure has an intent's revision measured, and returns what it takes once that is known.
func (p *Profiles) measure(o intent.Opened, loads *build.Round, now time.Time) chain.Profile {
	uid, revision := o.Payload().UID, o.Revision()
	id := [2]string{uid, revision}
	// Nothing is fetched for this.
	if now.Sub(p.unmeasured[id]) < measureAgain || !p.objects.Has(o.Payload().ObjectDigest) {
		return chain.Profile{}
	}
	key := "profile of " + build.Key(uid, revision)
	got, err := build.Get[build.Profile](loads, key, func() (build.Request, error) { return p.ask(o), nil })
	if decide.IsPending(err) {
		return chain.Profile{}
	}
	loads.Take(key)
	if err != nil {
		p.log.Error("measure what programs take; they count as programs alone", "application", o.Payload().Application.String(), "error", err)
		p.unmeasured[id] = now
		return chain.Profile{}
	}
	p.byRevision[id] = got.Profile
	return got.Profile
}

// ask asks for a revision to be measured. It waits in turn with the loads of
// its namespace.
func (p *Profiles) ask(o intent.Opened) build.Request {
	files := p.objects
	return build.Request{
		Line: "profile of application " + o.Payload().UID, Tenants: []string{o.Payload().Application.Namespace},
		Start: func() (build.Run, error) {
			return func(build.Turn) (io.Closer, error) {
				return build.Measure(o, files)
			}, nil
		},
	}
}
