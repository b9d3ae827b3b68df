// Package admission grants the limits of places to applications: of the hooks of interfaces, and
// of the memory for maps. It counts, remembers what ran, and rejects by the verbs of decide; it
// loads and attaches nothing. The verifier has its say later.
package admission

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	// asks are its XDP programs with their modes.
	asks []ask
	// isMeasured: Need is known. isGone: the application does not claim the place any more.
	isMeasured, isGone bool
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
	// Open is what is open.
	Open *live.Open
}

// Admission is what is known of places and of those that want them. It lasts as long as the
// agent.
type Admission struct {
	Options
	Memory   *Memory
	Profiles *Profiles
	waits    waits
	drivers  drivers
}

// New returns an Admission where no application waits.
func New(o Options) *Admission {
	return &Admission{Options: o, Memory: &Memory{Limit: o.MapMemory, history: o.History, open: o.Open},
		Profiles: &Profiles{log: o.Log, objects: o.Objects, byRevision: map[[2]string]chain.Profile{}, unmeasured: map[[2]string]time.Time{}},
		waits:    waits{long: orderWaits * o.FetchTimeout, since: map[history.At]time.Time{}}, drivers: drivers{}}
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
	// claims are those of Admit.
	claims *claims
	// given are the members that chains were given, by device and uid; see givenTo.
	given map[plan.Device]map[string][]plan.Member
	// ours are our links by place; nil until they are asked for.
	ours map[plan.Place]map[link.ID]bool
}

// Begin begins the admission of one reconcile.
func (a *Admission) Begin(d *decide.Decisions, loadRound *build.Round, lookups *targets.Round) *Round {
	adm := &Round{Admission: a, now: d.Now, decisions: d, look: d.Look, loadRound: loadRound, lookups: lookups, lost: map[history.At]bool{},
		given: map[plan.Device]map[string][]plan.Member{}}
	adm.claims = noClaims(adm)
	return adm
}

// Admit grants the limits of each place before anything is loaded: first to what
// runs there, then to what this node remembers to have run there, then to the
// oldest application. What does not fit is taken out of the reconcile, with an error.
// Only what can be counted is looked at here; the verifier has its say later.
func (adm *Round) Admit() {
	adm.present = history.Present(adm.look.State().Interfaces, adm.look.State().Links, adm.look.State().Chains)
	adm.drivers.forget(adm.look, adm.now)
	adm.leaveOutAsBefore()
	adm.claims = adm.newClaims()
	for place, ok := adm.claims.left.Next(); ok; place, ok = adm.claims.left.Next() {
		adm.admitTo(place)
	}
	for _, uid := range slices.Sorted(maps.Keys(adm.claims.leftOut)) {
		adm.claims.settle(uid)
	}
}

// admitTo rejects what does not fit at a place. A version that takes the place of what was rejected
// may change what fits elsewhere.
func (adm *Round) admitTo(place plan.Place) {
	claims := adm.claims.on(place)
	if !slices.ContainsFunc(claims, func(c *Claim) bool { return c.Seniority != plan.Running }) {
		return
	}
	claims = slices.Clone(claims)
	if adm.postponeYounger(place, claims) {
		return
	}
	refused := plan.Admit(place, adm.measured(place, claims), adm.limits(place))
	for _, c := range claims {
		if err := refused[c.UID]; err != nil {
			adm.claims.reject(place, c, err)
		}
	}
}

// claimsOf are the claims of one application, by place.
func (adm *Round) claimsOf(app plan.Application) map[plan.Place]*Claim {
	claims := make(map[plan.Place]*Claim, len(app.Attachments))
	all := make([]Claim, 0, len(app.Attachments))
	for i := range app.Attachments {
		a := &app.Attachments[i]
		if !history.IsLimited(a.Hook) {
			continue
		}
		place := plan.PlaceOf(*a)
		one := claims[place]
		if one == nil {
			all = append(all, Claim{Claim: plan.Claim{UID: app.UID, Identity: app.Identity}, revision: app.Revision})
			one = &all[len(all)-1]
			claims[place] = one
		}
		one.add(a)
	}
	for place, one := range claims {
		adm.rank(one, place)
	}
	return claims
}

// add adds a program.
func (c *Claim) add(a *plan.Attachment) {
	c.programs = append(c.programs, a.Program)
	if a.Hook != plan.XDP {
		return
	}
	c.asks = append(c.asks, ask{a.Program, a.XDPMode})
	c.Modes = addMode(c.Modes, a.XDPMode)
}

// rank finds by which right an application claims a place.
func (adm *Round) rank(c *Claim, place plan.Place) {
	slices.Sort(c.programs)
	at := atOf(c.UID, place)
	now, runs := adm.present[at]
	before, ran := adm.History.Lookup(at)
	switch {
	case runs && now.Covers(c.revision, c.programs) && !adm.changesMode(c, place):
		c.Seniority = plan.Running
	case ran && before.Covers(c.revision, c.programs):
		c.Seniority = plan.Remembered
	case runs || ran:
		c.Seniority, c.Held = plan.Replacing, before.Need
	default:
		c.Seniority = plan.Arriving
	}
}

// atOf names a place of an application.
func atOf(uid string, place plan.Place) history.At {
	return history.At{UID: uid, Hook: place.Hook, Interface: place.Interface}
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
func (adm *Round) measured(place plan.Place, claims []*Claim) []plan.Claim {
	all := make([]plan.Claim, 0, len(claims))
	for _, c := range claims {
		if !c.isMeasured {
			c.Need, c.isMeasured = adm.needOf(c.UID, place.Hook, c.revision, c.programs), true
		}
		all = append(all, c.Claim)
	}
	return append(all, adm.keptClaims(place, func(uid string) bool { return adm.claims.of[uid][place] != nil })...)
}

// keptClaims are the claims of applications that ran at a place and will again, but for
// those that are here.
func (adm *Round) keptClaims(place plan.Place, isHere func(uid string) bool) []plan.Claim {
	var all []plan.Claim
	for _, one := range adm.History.On(place.Hook, place.Interface) {
		if isHere(one.UID) || adm.forgets(one.At(), true, adm.claims.wants) {
			continue
		}
		if app := adm.decisions.Application(one.UID); app != nil && adm.decisions.Node.MayRun(app.Known, one.Revision) {
			all = append(all, plan.Claim{UID: one.UID, Identity: app.Newest.Payload().Application, Seniority: plan.Remembered,
				Created: adm.createdAt(one.UID), Need: one.Need})
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
	known, isKnown := adm.History.Need(uid, revision, programs)
	if isKnown && known.Translated > 0 {
		return known
	}
	if taken, ok := adm.profileOf(uid, revision).Need(programs...); ok {
		need.Maps, need.Functions, need.Closed, need.GPLOnly = taken.Maps, taken.Functions, taken.Closed, taken.GPLOnly
		need.Translated, need.Moves = taken.Translated, taken.Moves
	} else if isKnown {
		// An earlier agent wrote it, which did not count the load.
		return known
	}
	return need
}

// limits are those of a place.
func (adm *Round) limits(place plan.Place) plan.Limits {
	if place.Hook == plan.XDP {
		return plan.Limits{Maps: chain.MaxMaps, Functions: chain.MaxSubprograms, Dispatcher: true, LoadCost: chain.MaxLoadCost,
			SharePercent: adm.SharePercent, NoDriver: adm.drivers.why(place.Device)}
	}
	others, known := adm.claims.others[place]
	if !known {
		var err error
		if others, err = attach.OthersOn(place.Hook, place.Device, adm.lookups.Host().Namespaces, adm.oursOn(place)); err != nil {
			// The kernel counts for itself when a program is attached.
			adm.Log.Debug("count programs", "place", place.String(), "error", err)
		}
		adm.claims.others[place] = others
	}
	h, _ := hook.Lookup(place.Hook)
	return plan.Limits{Programs: max(1, h.MostPrograms()-others), SharePercent: adm.SharePercent}
}

// oursOn are our links at a place.
func (adm *Round) oursOn(place plan.Place) map[link.ID]bool {
	if adm.ours == nil {
		adm.ours = map[plan.Place]map[link.ID]bool{}
		for l := range adm.look.Links() {
			on := plan.Place{Hook: l.Attachment.Hook, Device: l.Attachment.Target.Device()}
			if !history.IsLimited(on.Hook) {
				continue
			}
			if adm.ours[on] == nil {
				adm.ours[on] = map[link.ID]bool{}
			}
			adm.ours[on][adm.look.Facts(l).ID] = true
		}
	}
	return adm.ours[plan.Place{Hook: place.Hook, Device: place.Device}]
}

// RejectAt takes a version out of the reconcile that does not fit at a place. One that
// runs or ran at other places is left out of this one alone: who fills one
// interface takes no application away from another.
func (adm *Round) RejectAt(place plan.Place, c Claim, err error) {
	adm.noteLost(place, c, err)
	if adm.claims.staysWithout(place, c) {
		adm.decisions.LeaveOut(c.UID, map[plan.Place]error{place: err})
		return
	}
	delete(adm.claims.runs, c.UID)
	adm.decisions.Reject(c.UID, err)
}

// noteLost notes that others run now in a place that an application had before.
func (adm *Round) noteLost(place plan.Place, c Claim, err error) {
	if c.Seniority == plan.Remembered && crowded(err) {
		adm.lost[atOf(c.UID, place)] = true
	}
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

// postponeYounger has those that never ran so at a place wait for who has precedence,
// and is fetched or loaded: what they take is not known yet. None waits for an
// application that failed, and none for longer than orderWait: who changes again
// and again would keep a place for ever.
func (adm *Round) postponeYounger(place plan.Place, claims []*Claim) bool {
	oldest, waits := plan.Claim{}, false
	for _, c := range adm.newcomersOnTheirWay()[place] {
		if !waits || c.Precedes(&oldest) < 0 {
			oldest, waits = c, true
		}
	}
	if !waits {
		return false
	}
	found := false
	for _, c := range claims {
		if c.Seniority > plan.Remembered && oldest.Precedes(&c.Claim) < 0 && !adm.waits.isOver(atOf(c.UID, place), adm.now) {
			adm.claims.change(c.UID, func() { adm.decisions.Postpone(c.UID, waitsFor(place)) })
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

// waits is since when applications wait at a place for one that has precedence.
type waits struct {
	// long is how long they have to, in all.
	long  time.Duration
	since map[history.At]time.Time
}

// isOver reports whether an application waited at a place for as long as it
// has to, and else counts from now, unless it waits already.
func (w waits) isOver(at history.At, now time.Time) bool {
	since, waits := w.since[at]
	if !waits {
		w.since[at] = now
		return false
	}
	return now.Sub(since) >= w.long
}

// forget forgets since when those wait that run by now, or are not to run any
// more. Who only was let in for a while has waited all the same.
func (w waits) forget(now map[history.At]history.Record, d *decide.Decisions) {
	for at := range w.since {
		if _, runs := now[at]; runs || d.Application(at.UID) == nil || d.IsGone(at.UID) {
			delete(w.since, at)
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
	one := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: app.Newest.Revision()}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			if h, ok := hook.Lookup(at.Hook); ok && h.Shape == hook.NetworkDevice && history.IsLimited(at.Hook) {
				// What is chosen and not there yet takes no place.
				found, _ := adm.lookups.OnInterfaces(plan.Attachment{Application: payload.Application, Program: program.Name, Hook: at.Hook}, at)
				one.Attachments = append(one.Attachments, found...)
			}
		}
	}
	for place, c := range adm.claimsOf(one) {
		if _, runs := adm.present[atOf(payload.UID, place)]; !runs {
			c.Created = payload.CreatedAt()
			adm.pendingClaims[place] = append(adm.pendingClaims[place], c.Claim)
		}
	}
}

// Precedence orders the newcomers of a chain: who is rejected last comes first.
func (adm *Round) Precedence(want plan.Chain, newcomers []string) []Claim {
	place := plan.Place{Hook: plan.XDP, Device: want.Device, Interface: want.Interface}
	all := make([]Claim, 0, len(newcomers))
	for _, uid := range newcomers {
		i := adm.decisions.IndexOf(uid)
		if i < 0 {
			// It is left as it was, and its link is made anew.
			all = append(all, adm.frozenClaim(history.At{UID: uid}, history.Record{}))
			continue
		}
		all = append(all, adm.claims.claim(&adm.decisions.Want.Applications[i], place))
	}
	slices.SortFunc(all, func(x, y Claim) int { return x.Precedes(&y.Claim) })
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
		adm.decisions.LeaveOut(app.Newest.Payload().UID, app.LeftOut)
	}
}
