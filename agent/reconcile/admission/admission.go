// Package admission grants the limits of places to applications: of the hooks of interfaces, and
// of the memory for maps. It counts, remembers what ran, and rejects by the verbs of decide; it
// loads and attaches nothing. The verifier has its say later.
package admission

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/hook"
)

// Claim is an application's claim to a place, with what it is of.
type Claim struct {
	plan.Claim
	revision string
	programs []string
}

// Options are those of an Admission. All are required.
type Options struct {
	Log *slog.Logger
	// SharePercent is how much of each limit the applications of one namespace may have
	// together.
	SharePercent int
	// MapMemory is what the maps of all applications may take, in bytes; 0 sets no limit.
	MapMemory int64
	// FetchTimeout is how long a fetch of an object takes at most.
	FetchTimeout time.Duration
	Objects      *objects.Cache
	// History is what last ran at each place.
	History *history.History
	Live    *live.Set
}

// Admission is what is known of places and of those that want them. It lasts as long as the
// agent.
type Admission struct {
	Options
	Memory   *Memory
	Profiles *Profiles
	// waiting is since when applications wait at a place for one that has precedence.
	waiting map[history.At]time.Time
	// drivers are those that took no XDP program.
	drivers map[plan.Device]noDriver
}

// New returns an Admission where nobody waits.
func New(o Options) *Admission {
	return &Admission{Options: o, Memory: &Memory{Limit: o.MapMemory, history: o.History, live: o.Live},
		Profiles: &Profiles{byRevision: map[[2]string]chain.Profile{}, unmeasured: map[[2]string]time.Time{}}, waiting: map[history.At]time.Time{},
		drivers: map[plan.Device]noDriver{}}
}

// Round is the admission of one reconcile.
type Round struct {
	*Admission
	now       time.Time
	decisions *decide.Decisions
	look      *live.Look
	loadRound *build.Round
	lookups   *targets.Round
	// present is what ran at each place when the reconcile began.
	present map[history.At]history.Record
	// pendingClaims are those of applications whose objects are on their way; nil
	// until they are asked for.
	pendingClaims map[plan.Place][]plan.Claim
	// lost are the places that others run at now which an application had before.
	lost map[history.At]bool
}

// Begin begins the admission of one reconcile.
func (a *Admission) Begin(d *decide.Decisions, loadRound *build.Round, lookups *targets.Round) *Round {
	return &Round{Admission: a, now: d.Now, decisions: d, look: d.Look, loadRound: loadRound, lookups: lookups, lost: map[history.At]bool{}}
}

// Admit grants the limits of each place before anything is loaded: first to what
// runs there, then to what this node remembers to have run there, then to the
// oldest application. What does not fit is taken out of the reconcile, with an error.
// Only what can be counted is looked at here; the verifier has its say later.
func (adm *Round) Admit() {
	adm.present = history.Present(adm.look.State.Interfaces, adm.look.State.Links, adm.look.State.Chains)
	adm.forgetDrivers()
	adm.leaveOutAsBefore()
	for range 3*len(adm.decisions.Applications) + len(adm.decisions.Want.Applications)*(len(adm.look.State.Interfaces)+1) {
		if !adm.rejectUnfit() {
			return
		}
	}
}

// rejectUnfit rejects what does not fit at the first place where anything does
// not, and reports whether it did. A version that takes the place of what was
// rejected may change what fits elsewhere.
func (adm *Round) rejectUnfit() bool {
	places := adm.claims()
	for _, place := range slices.SortedFunc(maps.Keys(places), comparePlaces) {
		claims := places[place]
		if !slices.ContainsFunc(claims, func(c Claim) bool { return c.Seniority != plan.Running }) {
			continue
		}
		for i := range claims {
			claims[i].Created = adm.createdAt(claims[i].UID)
		}
		if adm.postponeYounger(place, claims) {
			return true
		}
		refused := plan.Admit(place, adm.measured(place, claims), adm.limits(place))
		found := false
		for _, c := range claims {
			if err := refused[c.UID]; err != nil {
				adm.RejectAt(place, c, err)
				found = true
			}
		}
		if found {
			return true
		}
	}
	return false
}

func comparePlaces(a, b plan.Place) int {
	return cmp.Or(a.Device.Compare(b.Device), strings.Compare(a.Hook, b.Hook))
}

// claims are those of the applications that are to run, by place.
func (adm *Round) claims() map[plan.Place][]Claim {
	all := map[plan.Place][]Claim{}
	for _, app := range adm.decisions.Want.Applications {
		programs := map[plan.Place][]string{}
		for _, a := range app.Attachments {
			if history.IsLimited(a.Hook) {
				place := plan.PlaceOf(a)
				programs[place] = append(programs[place], a.Program)
			}
		}
		for place, names := range programs {
			all[place] = append(all[place], adm.claimOf(app, place, names))
		}
	}
	for at, one := range adm.present {
		if !slices.Contains(adm.decisions.Want.Frozen, at.UID) {
			continue
		}
		for _, i := range adm.look.State.Interfaces {
			if i.Label() == at.Interface {
				place := plan.Place{Hook: at.Hook, Device: i.Device, Interface: at.Interface}
				c := adm.frozenClaim(at, one)
				if at.Hook == plan.XDP {
					c.Modes = adm.modesGiven(at.UID, i.Device)
				}
				all[place] = append(all[place], c)
			}
		}
	}
	return all
}

// claimOf is the claim of one application to one place.
func (adm *Round) claimOf(app plan.Application, place plan.Place, programs []string) Claim {
	slices.Sort(programs)
	c := Claim{Claim: plan.Claim{UID: app.UID, Identity: app.Identity, Modes: modesAt(app, place)}, revision: app.Revision, programs: programs}
	at := history.At{UID: app.UID, Hook: place.Hook, Interface: place.Interface}
	now, runs := adm.present[at]
	before, ran := adm.History.Records[at]
	switch {
	case runs && now.Covers(app.Revision, programs) && !adm.changesMode(app, place):
		c.Seniority = plan.Running
	case ran && before.Covers(app.Revision, programs):
		c.Seniority = plan.Remembered
	case runs || ran:
		c.Seniority, c.Held = plan.Replacing, before.Need
	default:
		c.Seniority = plan.Arriving
	}
	return c
}

// frozenClaim is that of what runs and is left as it is.
func (adm *Round) frozenClaim(at history.At, now history.Record) Claim {
	c := Claim{Claim: plan.Claim{UID: at.UID, Seniority: plan.Running}, revision: now.Revision, programs: now.Programs}
	if app := adm.decisions.Application(at.UID); app != nil {
		c.Identity = app.Newest.Payload().Application
	}
	return c
}

// createdAt is when an application was created, as its newest intent says.
func (adm *Round) createdAt(uid string) int64 {
	app := adm.decisions.Application(uid)
	if app == nil {
		return 0
	}
	payload := app.Newest.Payload()
	return payload.CreatedAt()
}

// measured are the claims with what they take, and those of applications that ran
// at the place and will again, which cannot be had at present: their room is kept.
func (adm *Round) measured(place plan.Place, claims []Claim) []plan.Claim {
	var all []plan.Claim
	here := map[string]bool{}
	for _, c := range claims {
		here[c.UID] = true
		c.Need = adm.needOf(c.UID, place.Hook, c.revision, c.programs)
		all = append(all, c.Claim)
	}
	return append(all, adm.keptClaims(place, here)...)
}

// keptClaims are the claims of applications that ran at a place and will again, but for
// those that are here.
func (adm *Round) keptClaims(place plan.Place, here map[string]bool) []plan.Claim {
	var all []plan.Claim
	for at, one := range adm.History.Records {
		if at.Hook != place.Hook || at.Interface != place.Interface || here[at.UID] || adm.forgets(at, true) {
			continue
		}
		if app := adm.decisions.Application(at.UID); app != nil && adm.decisions.Node.MayRun(app.Known, one.Revision) {
			all = append(all, plan.Claim{UID: at.UID, Identity: app.Newest.Payload().Application, Seniority: plan.Remembered,
				Created: adm.createdAt(at.UID), Need: one.Need})
		}
	}
	return all
}

// needOf is what programs of a revision take of a place. What is not measured counts
// as its programs alone: the kernel tells what is wrong with it.
func (adm *Round) needOf(uid, hookName, revision string, programs []string) plan.Need {
	need := plan.Need{Programs: len(programs)}
	switch hookName {
	case plan.MapMemory().Hook:
		return adm.memoryOf(uid, revision)
	case plan.XDP:
	default:
		return need
	}
	if r, ok := adm.knownNeed(uid, revision, programs); ok {
		return r
	}
	if taken, ok := adm.profileOf(uid, revision).Need(programs...); ok {
		need.Maps, need.Functions, need.Closed, need.GPLOnly = taken.Maps, taken.Functions, taken.Closed, taken.GPLOnly
	}
	return need
}

// knownNeed finds what the same programs took where they ran.
func (adm *Round) knownNeed(uid, revision string, programs []string) (plan.Need, bool) {
	for at, one := range adm.History.Records {
		if at.UID == uid && at.Hook == plan.XDP && one.Equals(revision, programs) {
			return one.Need, true
		}
	}
	return plan.Need{}, false
}

// limits are those of a place.
func (adm *Round) limits(place plan.Place) plan.Limits {
	if place.Hook == plan.XDP {
		return plan.Limits{Maps: chain.MaxMaps, Functions: chain.MaxSubprograms, Dispatcher: true, SharePercent: adm.SharePercent,
			NoDriver: adm.whyNoDriver(place.Device)}
	}
	ours := map[link.ID]bool{}
	for _, links := range adm.look.Set.Links {
		for _, l := range links {
			if l.Attachment.Hook == place.Hook && l.Attachment.Target.Device() == place.Device {
				ours[adm.look.Facts(l.Path, l.Link).ID] = true
			}
		}
	}
	others, err := attach.OthersOn(place.Hook, place.Device, adm.lookups.Host().Namespaces, ours)
	if err != nil {
		// The kernel counts for itself when a program is attached.
		adm.Log.Debug("count programs", "place", place.String(), "error", err)
	}
	return plan.Limits{Programs: max(1, attach.MaxOrdered-others), SharePercent: adm.SharePercent}
}

// RejectAt takes a version out of the reconcile that does not fit at a place. One that
// runs or ran at other places is left out of this one alone: who fills one
// interface takes nobody away from another.
func (adm *Round) RejectAt(place plan.Place, c Claim, err error) {
	at := history.At{UID: c.UID, Hook: place.Hook, Interface: place.Interface}
	if c.Seniority == plan.Remembered && crowded(err) {
		// Others run in its place now.
		adm.lost[at] = true
	}
	if _, runs := adm.present[at]; !runs && adm.runsElsewhere(at, c.revision) {
		adm.decisions.LeaveOut(place, c.UID, err)
		return
	}
	adm.decisions.Reject(c.UID, err)
}

// crowded reports whether an application is rejected for what others hold. Any other
// error of the kernel may be gone at the next attempt, and gives no place away.
func crowded(err error) bool {
	if over := new(plan.OverLimitError); errors.As(err, &over) {
		return true
	}
	refusal := new(chain.Rejection)
	return errors.As(err, &refusal) && refusal.Queued()
}

// runsElsewhere reports whether the version that an application is to have runs, or
// ran last, at another of the places that it is to have.
func (adm *Round) runsElsewhere(here history.At, revision string) bool {
	i := adm.decisions.IndexOf(here.UID)
	return i >= 0 && slices.ContainsFunc(adm.decisions.Want.Applications[i].Attachments, func(a plan.Attachment) bool {
		at := history.At{UID: here.UID, Hook: a.Hook, Interface: a.Target.String()}
		if history.IsLimited(a.Hook) {
			return at != here && (adm.present[at].Covers(revision, []string{a.Program}) || adm.History.Records[at].Covers(revision, []string{a.Program}))
		}
		return slices.ContainsFunc(adm.look.State.Links, func(l plan.Link) bool {
			return l.UID == here.UID && l.Revision == revision && l.Attachment.Key() == a.Key()
		})
	})
}

// postponeYounger has those that never ran so at a place wait for who has precedence,
// and is fetched or loaded: what they take is not known yet. Nobody waits for an
// application that failed, and nobody for longer than orderWait: who changes again
// and again would keep a place for ever.
func (adm *Round) postponeYounger(place plan.Place, claims []Claim) bool {
	oldest, waits := plan.Claim{}, false
	for _, c := range adm.newcomersOnTheirWay()[place] {
		if !waits || c.Precedes(oldest) < 0 {
			oldest, waits = c, true
		}
	}
	if !waits {
		return false
	}
	found := false
	for _, c := range claims {
		if c.Seniority > plan.Remembered && oldest.Precedes(c.Claim) < 0 && !adm.waitedEnough(history.At{UID: c.UID, Hook: place.Hook, Interface: place.Interface}) {
			adm.decisions.Postpone(c.UID, waitsFor(place))
			found = true
		}
	}
	return found
}

// waitsFor says that an application waits at a place.
func waitsFor(place plan.Place) string {
	return fmt.Sprintf("it waits: an application that has precedence on %s is on its way", place)
}

// orderWaits is how many fetches long an application waits at a place, in all, for
// those that have precedence there.
const orderWaits = 2

// waitedEnough reports whether an application waited at a place for as long as it
// has to, and else counts from now, unless it waits already.
func (adm *Round) waitedEnough(at history.At) bool {
	since, waits := adm.waiting[at]
	if !waits {
		adm.waiting[at] = adm.now
		return false
	}
	return adm.now.Sub(since) >= orderWaits*adm.FetchTimeout
}

// forgetWaits forgets since when those wait that run by now, or are not to run any
// more. Who only was let in for a while has waited all the same.
func (adm *Round) forgetWaits(now map[history.At]history.Record) {
	for at := range adm.waiting {
		if _, runs := now[at]; runs || adm.decisions.Application(at.UID) == nil || adm.decisions.IsGone(at.UID) {
			delete(adm.waiting, at)
		}
	}
}

// newcomersOnTheirWay are the claims of applications that do not run at a place, and
// whose newest version is being fetched or loaded for the first time: what failed
// before may fail for ever.
func (adm *Round) newcomersOnTheirWay() map[plan.Place][]plan.Claim {
	if adm.pendingClaims != nil {
		return adm.pendingClaims
	}
	adm.pendingClaims = map[plan.Place][]plan.Claim{}
	for _, app := range adm.decisions.Applications {
		if adm.decisions.IsOnItsWay(app.Newest.Payload().UID) {
			adm.addPending(app)
		}
	}
	return adm.pendingClaims
}

// addPending adds the claims of an application that is on its way.
func (adm *Round) addPending(app *decide.Application) {
	payload := app.Newest.Payload()
	programs := map[plan.Place][]string{}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			if h, ok := hook.Lookup(at.Hook); !ok || h.Shape != hook.NetworkDevice || !history.IsLimited(at.Hook) {
				continue
			}
			// What is chosen and not there yet takes no place.
			found, _ := adm.lookups.OnInterfaces(plan.Attachment{Application: payload.Application, Program: program.Name, Hook: at.Hook}, at)
			for _, a := range found {
				place := plan.PlaceOf(a)
				programs[place] = append(programs[place], program.Name)
			}
		}
	}
	one := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: app.Newest.Revision()}
	for place, names := range programs {
		if _, runs := adm.present[history.At{UID: payload.UID, Hook: place.Hook, Interface: place.Interface}]; runs {
			continue
		}
		c := adm.claimOf(one, place, names).Claim
		c.Created = payload.CreatedAt()
		adm.pendingClaims[place] = append(adm.pendingClaims[place], c)
	}
}

// Precedence orders the newcomers of a chain: who is rejected last comes first.
func (adm *Round) Precedence(want plan.Chain, newcomers []string) []Claim {
	place := plan.Place{Hook: plan.XDP, Device: want.Device, Interface: want.Interface}
	var all []Claim
	for _, app := range adm.decisions.Want.Applications {
		if !slices.Contains(newcomers, app.UID) {
			continue
		}
		var programs []string
		for _, a := range app.Attachments {
			if a.Hook == plan.XDP && a.Target.Device() == want.Device {
				programs = append(programs, a.Program)
			}
		}
		c := adm.claimOf(app, place, programs)
		c.Created = adm.createdAt(app.UID)
		all = append(all, c)
	}
	for _, uid := range newcomers {
		if !slices.ContainsFunc(all, func(c Claim) bool { return c.UID == uid }) {
			// It is left as it was, and its link is made anew.
			all = append(all, adm.frozenClaim(history.At{UID: uid}, history.Record{}))
		}
	}
	slices.SortFunc(all, func(x, y Claim) int { return x.Precedes(y.Claim) })
	return all
}

// leaveOutAsBefore leaves out what did not fit a short while ago, without another
// look.
func (adm *Round) leaveOutAsBefore() {
	for _, app := range adm.decisions.Applications {
		if len(app.LeftOut) == 0 {
			continue
		}
		if !adm.now.Before(app.RetryAt) {
			app.LeftOut = nil
			continue
		}
		for _, place := range slices.SortedFunc(maps.Keys(app.LeftOut), comparePlaces) {
			uid := app.Newest.Payload().UID
			if adm.wantsAt(uid, place) {
				adm.decisions.LeaveOut(place, uid, app.LeftOut[place])
			}
		}
	}
}

// wantsAt reports whether an application is to run at a place.
func (adm *Round) wantsAt(uid string, place plan.Place) bool {
	i := adm.decisions.IndexOf(uid)
	return i >= 0 && slices.ContainsFunc(adm.decisions.Want.Applications[i].Attachments, func(at plan.Attachment) bool {
		return at.Hook == place.Hook && at.Target.Device() == place.Device
	})
}
