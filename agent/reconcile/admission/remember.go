package admission

import (
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/history"
)

// attached is what the kernel has taken by the end of the reconcile.
func (adm *Round) attached() map[history.At]history.Record {
	var links []plan.Link
	for l := range adm.look.Links() {
		if history.IsLimited(l.Attachment.Hook) {
			facts := adm.look.Facts(l)
			links = append(links, plan.Link{UID: l.UID, Attachment: l.Attachment, Revision: adm.look.RevisionOf(l, facts), Severed: facts.Severed})
		}
	}
	var chains []plan.Chain
	for device, c := range adm.look.Chains() {
		if c.Version != nil {
			chains = append(chains, plan.Chain{Device: device, Members: c.Version.Members})
		}
	}
	return history.Present(adm.look.State().Interfaces, links, chains)
}

// Remember keeps what runs at each place, for the next start: only what the
// kernel has taken. What an application no longer asks for, or lost to others, is
// forgotten; what is away with its interface is not.
func (adm *Round) Remember() {
	now, next := adm.attached(), adm.History.Clone()
	adm.addMemory(now)
	adm.waits.forget(now, adm.decisions)
	for at, one := range now {
		before, known := next[at]
		if out := adm.decisions.Outcomes[at.UID]; one.Revision == "" || out != nil && out.HasLeft(report.Turn{}) {
			// In the middle of an update: what ran whole counts on.
			continue
		}
		if known && before.Equals(one.Revision, one.Programs) && (at.Hook != plan.XDP || before.Need.Translated > 0) {
			one.Need = before.Need
		} else {
			one.Need = adm.needOf(at.UID, at.Hook, one.Revision, one.Programs)
		}
		next[at] = one
	}
	// The node's memory is of no interface.
	there := map[string]bool{"": true}
	for _, i := range adm.look.State().Interfaces {
		there[i.Label()] = true
	}
	wanted := adm.wanted()
	for at, one := range next {
		if _, runs := now[at]; runs {
			continue
		}
		switch {
		case adm.forgets(at, there[at.Interface], func(at history.At) bool { return wanted[at] }):
			delete(next, at)
		case there[at.Interface]:
			one.Gone = 0
			next[at] = one
		case one.Gone == 0:
			one.Gone = adm.now.UnixMilli()
			next[at] = one
		}
	}
	history.Bound(next, func(uid string) bool { return adm.decisions.Application(uid) != nil })
	if err := adm.History.Keep(next); err != nil {
		adm.Log.Error("remember what runs", "error", err)
	}
}

// wanted are the limited places that applications are to have.
func (adm *Round) wanted() map[history.At]bool {
	all := map[history.At]bool{}
	for _, app := range adm.decisions.Want.Applications {
		for i := range app.Attachments {
			if a := &app.Attachments[i]; history.IsLimited(a.Hook) {
				all[atOf(app.UID, plan.PlaceOf(*a))] = true
			}
		}
	}
	return all
}

// forgets reports whether what ran at a place and does not now has no claim to it
// any more. wants says whether an application is to have a place.
func (adm *Round) forgets(at history.At, there bool, wants func(history.At) bool) bool {
	if adm.decisions.IsGone(at.UID) || adm.lost[at] {
		return true
	}
	if at == history.InMemory(at.UID) {
		return adm.Memory.Limit == 0
	}
	if adm.decisions.IndexOf(at.UID) < 0 || !there {
		return false
	}
	if out := adm.decisions.Outcomes[at.UID]; out != nil && len(out.Links) > 0 || adm.claims.isLeftOut(at.UID) {
		// A target of its is not there: it may be this one, once it is primary.
		return false
	}
	return !wants(at)
}
