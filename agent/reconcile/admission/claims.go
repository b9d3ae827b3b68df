package admission

import (
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/agenda"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/history"
)

// claims are the claims of one Admit, which follow what is wanted: a change of an application's
// version changes its claims alone.
type claims struct {
	adm *Round
	// at are the claims by place, with some that are gone, and of those of an application by uid. named are
	// the places of the same name, which a network namespace that is made anew may have twice.
	at    map[plan.Place][]*Claim
	of    map[string]map[plan.Place]*Claim
	named map[placeName][]plan.Place
	// present is what ran of an application, by uid, and devices are the interfaces by label.
	present map[string][]history.At
	devices map[string][]plan.Device
	// left are the places that are to be looked at.
	left *agenda.Agenda[plan.Place]
	// leftOut says why an application is left out of places, until it is settled, and runs is where
	// those run that were left out.
	leftOut map[string]map[plan.Place]error
	runs    map[string]runs
	// others are the programs of others by place, once they were counted.
	others map[plan.Place]int
}

// placeName is what a node remembers a place by.
type placeName struct{ hook, on string }

// noClaims returns claims of nothing.
func noClaims(adm *Round) *claims {
	return &claims{adm: adm, at: map[plan.Place][]*Claim{}, of: map[string]map[plan.Place]*Claim{}, named: map[placeName][]plan.Place{},
		present: map[string][]history.At{}, devices: map[string][]plan.Device{}, leftOut: map[string]map[plan.Place]error{}, runs: map[string]runs{},
		others: map[plan.Place]int{}}
}

// newClaims returns the claims of what is to run, and of what runs and is left as it is. All places
// are to be looked at.
func (adm *Round) newClaims() *claims {
	c := noClaims(adm)
	for at := range adm.present {
		c.present[at.UID] = append(c.present[at.UID], at)
	}
	for _, i := range adm.look.State().Interfaces {
		c.devices[i.Label()] = append(c.devices[i.Label()], i.Device)
	}
	for _, app := range adm.decisions.Want.Applications {
		c.add(app.UID, adm.claimsOf(app))
	}
	for _, uid := range adm.decisions.Want.Frozen {
		c.add(uid, c.frozen(uid))
	}
	c.left = agenda.New(slices.Collect(maps.Keys(c.at)))
	return c
}

// add adds the claims of an application.
func (c *claims) add(uid string, all map[plan.Place]*Claim) {
	created := c.adm.createdAt(uid)
	for place, one := range all {
		if _, known := c.at[place]; !known {
			name := placeName{place.Hook, place.Interface}
			c.named[name] = append(c.named[name], place)
		}
		one.Created = created
		c.at[place] = append(c.at[place], one)
	}
	c.of[uid] = all
}

// on are the claims to a place.
func (c *claims) on(place plan.Place) []*Claim {
	c.at[place] = slices.DeleteFunc(c.at[place], func(one *Claim) bool { return one.isGone })
	return c.at[place]
}

// claim returns the claim of an application that is to run to a place of XDP.
func (c *claims) claim(app *plan.Application, place plan.Place) Claim {
	one := c.of[app.UID][place]
	if one == nil || one.revision != app.Revision {
		// Another version is to run since.
		c.add(app.UID, c.adm.claimsOf(*app))
		one = c.of[app.UID][place]
	}
	if one != nil {
		return *one
	}
	// The interface had another name when the target was found.
	found := Claim{Claim: plan.Claim{UID: app.UID, Identity: app.Identity, Created: c.adm.createdAt(app.UID)}, revision: app.Revision}
	for i := range app.Attachments {
		if a := &app.Attachments[i]; a.Hook == place.Hook && a.Target.Device() == place.Device {
			found.add(a)
		}
	}
	c.adm.rank(&found, place)
	return found
}

// frozen are the claims of an application that is left as it is.
func (c *claims) frozen(uid string) map[plan.Place]*Claim {
	all := map[plan.Place]*Claim{}
	for _, at := range c.present[uid] {
		for _, device := range c.devices[at.Interface] {
			one := c.adm.frozenClaim(at, c.adm.present[at])
			if at.Hook == plan.XDP {
				one.Modes = c.adm.modesGiven(uid, device)
				for _, m := range c.adm.givenTo(device, uid) {
					one.Identity = m.Identity
				}
			}
			all[plan.Place{Hook: at.Hook, Device: device, Interface: at.Interface}] = &one
		}
	}
	return all
}

// wants reports whether an application is to have a place.
func (c *claims) wants(at history.At) bool {
	return slices.ContainsFunc(c.named[placeName{at.Hook, at.Interface}], func(place plan.Place) bool {
		return c.of[at.UID][place] != nil
	})
}

// reject takes a version out that does not fit at a place, as RejectAt does.
func (c *claims) reject(place plan.Place, one *Claim, err error) {
	c.adm.noteLost(place, *one, err)
	if one.Seniority == plan.Running {
		// It stays as it is elsewhere, and here, too, until the chain without it can be had.
		decide.Overrule(c.adm.decisions, place.Device, one.UID, err)
		c.remove(place, one)
		return
	}
	if !c.staysWithout(place, *one) {
		c.change(one.UID, func() { c.adm.decisions.Reject(one.UID, err) })
		return
	}
	if c.leftOut[one.UID] == nil {
		c.leftOut[one.UID] = map[plan.Place]error{}
		c.lookAtRecords(one.UID)
	}
	c.leftOut[one.UID][place] = err
	c.remove(place, one)
	c.left.Add(place)
}

// isLeftOut reports whether an application is to be left out of a place.
func (c *claims) isLeftOut(uid string) bool { return len(c.leftOut[uid]) > 0 }

// settle leaves an application out where it does not fit.
func (c *claims) settle(uid string) {
	if why := c.leftOut[uid]; len(why) > 0 {
		c.adm.decisions.LeaveOut(uid, why)
	}
	delete(c.leftOut, uid)
}

// change has the decision on an application change, and looks again where that may change what fits.
func (c *claims) change(uid string, decide func()) {
	c.settle(uid)
	decide()
	delete(c.runs, uid)
	before := c.of[uid]
	for place, one := range before {
		c.remove(place, one)
		c.left.Add(place)
	}
	delete(c.of, uid)
	if i := c.adm.decisions.IndexOf(uid); i >= 0 {
		c.add(uid, c.adm.claimsOf(c.adm.decisions.Want.Applications[i]))
	} else if c.adm.decisions.IsFrozen(uid) {
		c.add(uid, c.frozen(uid))
	}
	for place := range c.of[uid] {
		c.left.Add(place)
	}
	c.lookAtRecords(uid)
}

// remove takes the claim of an application to a place away.
func (c *claims) remove(place plan.Place, one *Claim) {
	one.isGone = true
	delete(c.of[one.UID], place)
}

// lookAtRecords has the places looked at again where an application ran: what is kept for it there
// may have changed.
func (c *claims) lookAtRecords(uid string) {
	for _, at := range c.adm.History.Of(uid) {
		for _, place := range c.named[placeName{at.Hook, at.Interface}] {
			c.left.Add(place)
		}
	}
}

// runs are the places where the version of an application that is to run runs, or ran last.
type runs struct {
	revision string
	at       map[history.At]bool
	// unlimited tells that it runs at a place without limits.
	unlimited bool
}

// staysWithout reports whether an application goes on at its other places without one: it does not run at this
// one, and runs or ran at another. It is to leave the place then.
func (c *claims) staysWithout(place plan.Place, one Claim) bool {
	at := atOf(one.UID, place)
	if _, here := c.adm.present[at]; here {
		return false
	}
	others := c.runsOf(one.UID)
	delete(others.at, at)
	return others.unlimited || len(others.at) > 0
}

// runsOf returns where an application runs or ran, among the places that it is to have. It looks once for each version.
func (c *claims) runsOf(uid string) runs {
	i := c.adm.decisions.IndexOf(uid)
	if i < 0 {
		return runs{}
	}
	app := c.adm.decisions.Want.Applications[i]
	if known, ok := c.runs[uid]; ok && known.revision == app.Revision {
		return known
	}
	r := runs{revision: app.Revision, at: map[history.At]bool{}}
	var made map[plan.Attachment]bool
	for i := range app.Attachments {
		a := &app.Attachments[i]
		if !history.IsLimited(a.Hook) {
			if made == nil {
				made = c.adm.unlimitedLinks(uid, app.Revision)
			}
			r.unlimited = r.unlimited || len(made) > 0 && made[a.Unnamed()]
			continue
		}
		at := atOf(uid, plan.PlaceOf(*a))
		before, _ := c.adm.History.Lookup(at)
		if programs := []string{a.Program}; c.adm.present[at].Covers(app.Revision, programs) || before.Covers(app.Revision, programs) {
			r.at[at] = true
		}
	}
	c.runs[uid] = r
	return r
}

// unlimitedLinks are the links of a revision at places without limits, unnamed.
func (adm *Round) unlimitedLinks(uid, revision string) map[plan.Attachment]bool {
	made := map[plan.Attachment]bool{}
	for _, l := range adm.look.SeenLinks(uid) {
		if l.Revision == revision && !history.IsLimited(l.Attachment.Hook) {
			made[l.Attachment.Unnamed()] = true
		}
	}
	return made
}
