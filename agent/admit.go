package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/history"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/hook"
)

// claim is an application's claim to a place, with what it is of.
type claim struct {
	plan.Claim
	revision string
	programs []string
}

// admit grants the limits of each place before anything is loaded: first to what
// runs there, then to what this node remembers to have run there, then to the
// oldest application. What does not fit is taken out of the reconcile, with an error.
// Only what can be counted is looked at here; the verifier has its say later.
func (rec *reconcile) admit() {
	rec.admission.present = history.Present(rec.look.State.Interfaces, rec.look.State.Links, rec.look.State.Chains)
	rec.leaveOutAsBefore()
	for range 3*len(rec.apps) + len(rec.want.Applications)*(len(rec.look.State.Interfaces)+1) {
		if !rec.rejectUnfit() {
			return
		}
	}
}

// rejectUnfit rejects what does not fit at the first place where anything does
// not, and reports whether it did. A version that takes the place of what was
// rejected may change what fits elsewhere.
func (rec *reconcile) rejectUnfit() bool {
	places := rec.claims()
	for _, place := range slices.SortedFunc(maps.Keys(places), comparePlaces) {
		claims := places[place]
		if !slices.ContainsFunc(claims, func(c claim) bool { return c.Seniority != plan.Running }) {
			continue
		}
		for i := range claims {
			claims[i].Created = rec.createdAt(claims[i].UID)
		}
		if rec.postponeYounger(place, claims) {
			return true
		}
		refused := plan.Admit(place, rec.measured(place, claims), rec.limits(place))
		found := false
		for _, c := range claims {
			if err := refused[c.UID]; err != nil {
				rec.rejectAt(place, c, err)
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
	return cmp.Or(cmp.Compare(a.Ifindex, b.Ifindex), strings.Compare(a.Hook, b.Hook))
}

// claims are those of the applications that are to run, by place.
func (rec *reconcile) claims() map[plan.Place][]claim {
	all := map[plan.Place][]claim{}
	for _, app := range rec.want.Applications {
		programs := map[plan.Place][]string{}
		for _, a := range app.Attachments {
			if history.IsLimited(a.Hook) {
				place := plan.Place{Hook: a.Hook, Ifindex: a.Ifindex, Interface: a.Interface}
				programs[place] = append(programs[place], a.Program)
			}
		}
		for place, names := range programs {
			all[place] = append(all[place], rec.claimOf(app, place, names))
		}
	}
	for at, one := range rec.admission.present {
		if i := slices.IndexFunc(rec.look.State.Interfaces, func(i plan.Interface) bool { return i.Name == at.Interface }); i >= 0 && slices.Contains(rec.want.Frozen, at.UID) {
			place := plan.Place{Hook: at.Hook, Ifindex: rec.look.State.Interfaces[i].Index, Interface: at.Interface}
			all[place] = append(all[place], rec.frozenClaim(at, one))
		}
	}
	return all
}

// claimOf is the claim of one application to one place.
func (rec *reconcile) claimOf(app plan.Application, place plan.Place, programs []string) claim {
	slices.Sort(programs)
	c := claim{Claim: plan.Claim{UID: app.UID, Identity: app.Identity}, revision: app.Revision, programs: programs}
	at := history.At{UID: app.UID, Hook: place.Hook, Interface: place.Interface}
	now, runs := rec.admission.present[at]
	before, ran := rec.history.Records[at]
	switch {
	case runs && now.Covers(app.Revision, programs):
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
func (rec *reconcile) frozenClaim(at history.At, now history.Record) claim {
	c := claim{Claim: plan.Claim{UID: at.UID, Seniority: plan.Running}, revision: now.Revision, programs: now.Programs}
	if app := rec.application(at.UID); app != nil {
		c.Identity = app.Newest.Payload().Application
	}
	return c
}

// createdAt is when an application was created, as its newest intent says.
func (rec *reconcile) createdAt(uid string) int64 {
	app := rec.application(uid)
	if app == nil {
		return 0
	}
	payload := app.Newest.Payload()
	return payload.CreatedAt()
}

// measured are the claims with what they take, and those of applications that ran
// at the place and will again, which cannot be had at present: their room is kept.
func (rec *reconcile) measured(place plan.Place, claims []claim) []plan.Claim {
	var all []plan.Claim
	here := map[string]bool{}
	for _, c := range claims {
		here[c.UID] = true
		c.Need = rec.needOf(c.UID, place.Hook, c.revision, c.programs)
		all = append(all, c.Claim)
	}
	return append(all, rec.keptClaims(place, here)...)
}

// keptClaims are the claims of applications that ran at a place and will again, but for
// those that are here.
func (rec *reconcile) keptClaims(place plan.Place, here map[string]bool) []plan.Claim {
	var all []plan.Claim
	for at, one := range rec.history.Records {
		if at.Hook != place.Hook || at.Interface != place.Interface || here[at.UID] || rec.forgets(at, true) {
			continue
		}
		if app := rec.application(at.UID); app != nil && rec.node.MayRun(app.Known, one.Revision) {
			all = append(all, plan.Claim{UID: at.UID, Identity: app.Newest.Payload().Application, Seniority: plan.Remembered,
				Created: rec.createdAt(at.UID), Need: one.Need})
		}
	}
	return all
}

// needOf is what programs of a revision take of a place. What is not measured counts
// as its programs alone: the kernel tells what is wrong with it.
func (rec *reconcile) needOf(uid, hookName, revision string, programs []string) plan.Need {
	need := plan.Need{Programs: len(programs)}
	switch hookName {
	case plan.MapMemory().Hook:
		return memoryOf(map[string]*kernel.Revision{revision: rec.live.Revisions[uid][revision]})
	case plan.XDP:
	default:
		return need
	}
	if r, ok := rec.knownNeed(uid, revision, programs); ok {
		return r
	}
	if taken, ok := rec.profileOf(uid, revision).Need(programs...); ok {
		need.Maps, need.Functions, need.Closed, need.GPLOnly = taken.Maps, taken.Functions, taken.Closed, taken.GPLOnly
	}
	return need
}

// knownNeed finds what the same programs took where they ran.
func (rec *reconcile) knownNeed(uid, revision string, programs []string) (plan.Need, bool) {
	for at, one := range rec.history.Records {
		if at.UID == uid && at.Hook == plan.XDP && one.Equals(revision, programs) {
			return one.Need, true
		}
	}
	return plan.Need{}, false
}

// limits are those of a place.
func (rec *reconcile) limits(place plan.Place) plan.Limits {
	if place.Hook == plan.XDP {
		return plan.Limits{Maps: chain.MaxMaps, Functions: chain.MaxSubprograms, Dispatcher: true, SharePercent: rec.opts.NamespaceShare}
	}
	ours := map[link.ID]bool{}
	for _, links := range rec.live.Links {
		for _, l := range links {
			if l.Attachment.Hook == place.Hook && l.Attachment.Ifindex == place.Ifindex {
				ours[rec.look.Facts(l.Path, l.Link).ID] = true
			}
		}
	}
	others, err := attach.OthersOnTCX(place.Hook, place.Ifindex, ours)
	if err != nil {
		// The kernel counts for itself when a program is attached.
		rec.opts.Log.Debug("count programs", "place", place.String(), "error", err)
	}
	return plan.Limits{Programs: max(1, attach.MaxTCX-others), SharePercent: rec.opts.NamespaceShare}
}

// rejectAt takes a version out of the reconcile that does not fit at a place. One that
// runs or ran at other places is left out of this one alone: who fills one
// interface takes nobody away from another.
func (rec *reconcile) rejectAt(place plan.Place, c claim, err error) {
	at := history.At{UID: c.UID, Hook: place.Hook, Interface: place.Interface}
	if c.Seniority == plan.Remembered && crowded(err) {
		// Others run in its place now.
		rec.admission.lost[at] = true
	}
	if _, runs := rec.admission.present[at]; !runs && rec.runsElsewhere(at, c.revision) {
		rec.leaveOut(place, c.UID, err)
		return
	}
	rec.reject(c.UID, err)
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
func (rec *reconcile) runsElsewhere(here history.At, revision string) bool {
	i := rec.wanted(here.UID)
	return i >= 0 && slices.ContainsFunc(rec.want.Applications[i].Attachments, func(a plan.Attachment) bool {
		at := history.At{UID: here.UID, Hook: a.Hook, Interface: a.Interface}
		if history.IsLimited(a.Hook) {
			return at != here && (rec.admission.present[at].Covers(revision, []string{a.Program}) || rec.history.Records[at].Covers(revision, []string{a.Program}))
		}
		return slices.ContainsFunc(rec.look.State.Links, func(l plan.Link) bool {
			return l.UID == here.UID && l.Revision == revision && l.Attachment.Key() == a.Key()
		})
	})
}

// postponeYounger has those that never ran so at a place wait for who has precedence,
// and is fetched or loaded: what they take is not known yet. Nobody waits for an
// application that failed, and nobody for longer than orderWait: who changes again
// and again would keep a place for ever.
func (rec *reconcile) postponeYounger(place plan.Place, claims []claim) bool {
	oldest, waits := plan.Claim{}, false
	for _, c := range rec.newcomersOnTheirWay()[place] {
		if !waits || c.Precedes(oldest) < 0 {
			oldest, waits = c, true
		}
	}
	if !waits {
		return false
	}
	found := false
	for _, c := range claims {
		if c.Seniority > plan.Remembered && oldest.Precedes(c.Claim) < 0 && !rec.waitedEnough(history.At{UID: c.UID, Hook: place.Hook, Interface: place.Interface}) {
			rec.postpone(c.UID, waitsFor(place))
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
func (rec *reconcile) waitedEnough(at history.At) bool {
	since, waits := rec.waiting[at]
	if !waits {
		rec.waiting[at] = rec.now
		return false
	}
	return rec.now.Sub(since) >= orderWaits*rec.opts.FetchTimeout
}

// forgetWaits forgets since when those wait that run by now, or are not to run any
// more. Who only was let in for a while has waited all the same.
func (rec *reconcile) forgetWaits(now map[history.At]history.Record) {
	for at := range rec.waiting {
		if _, runs := now[at]; runs || rec.application(at.UID) == nil || rec.isGone(at.UID) {
			delete(rec.waiting, at)
		}
	}
}

// newcomersOnTheirWay are the claims of applications that do not run at a place, and
// whose newest version is being fetched or loaded for the first time: what failed
// before may fail for ever.
func (rec *reconcile) newcomersOnTheirWay() map[plan.Place][]plan.Claim {
	if rec.admission.pendingClaims != nil {
		return rec.admission.pendingClaims
	}
	rec.admission.pendingClaims = map[plan.Place][]plan.Claim{}
	for _, app := range rec.apps {
		if rec.isOnItsWay(app.Newest.Payload().UID) {
			rec.addPending(app)
		}
	}
	return rec.admission.pendingClaims
}

// addPending adds the claims of an application that is on its way.
func (rec *reconcile) addPending(app *application) {
	payload := app.Newest.Payload()
	programs := map[plan.Place][]string{}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			if h, ok := hook.Lookup(at.Hook); !ok || h.Shape != hook.NetworkDevice || !history.IsLimited(at.Hook) {
				continue
			}
			found, err := targets.OnInterfaces(plan.Attachment{Hook: at.Hook}, at, rec.look.State.Interfaces)
			if err != nil {
				continue
			}
			for _, a := range found {
				place := plan.Place{Hook: a.Hook, Ifindex: a.Ifindex, Interface: a.Interface}
				programs[place] = append(programs[place], program.Name)
			}
		}
	}
	one := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: app.Newest.Revision()}
	for place, names := range programs {
		if _, runs := rec.admission.present[history.At{UID: payload.UID, Hook: place.Hook, Interface: place.Interface}]; runs {
			continue
		}
		c := rec.claimOf(one, place, names).Claim
		c.Created = payload.CreatedAt()
		rec.admission.pendingClaims[place] = append(rec.admission.pendingClaims[place], c)
	}
}

// precedence orders the newcomers of a chain: who is rejected last comes first.
func (rec *reconcile) precedence(want plan.Chain, newcomers []string) []claim {
	place := plan.Place{Hook: plan.XDP, Ifindex: want.Ifindex, Interface: want.Interface}
	var all []claim
	for _, app := range rec.want.Applications {
		if !slices.Contains(newcomers, app.UID) {
			continue
		}
		var programs []string
		for _, a := range app.Attachments {
			if a.Hook == plan.XDP && a.Ifindex == want.Ifindex {
				programs = append(programs, a.Program)
			}
		}
		c := rec.claimOf(app, place, programs)
		c.Created = rec.createdAt(app.UID)
		all = append(all, c)
	}
	for _, uid := range newcomers {
		if !slices.ContainsFunc(all, func(c claim) bool { return c.UID == uid }) {
			// It is left as it was, and its link is made anew.
			all = append(all, rec.frozenClaim(history.At{UID: uid}, history.Record{}))
		}
	}
	slices.SortFunc(all, func(x, y claim) int { return x.Precedes(y.Claim) })
	return all
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
		rec.rejectAt(place, culprit, err)
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
