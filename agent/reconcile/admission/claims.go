package admission

import (
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/history"
)

// claims are the claims of one Admit, which follow what is wanted: a change of an application's
// version changes its claims alone.
type claims struct {
	adm *Round
	// at are the claims by place, and of the places of an application's by uid. named are the places
	// of the same name, which a network namespace that is made anew may have twice.
	at    map[plan.Place][]*Claim
	of    map[string][]plan.Place
	named map[placeName][]plan.Place
	// present is what ran of an application, by uid, and devices are the interfaces by label.
	present map[string][]history.At
	devices map[string][]plan.Device
	// left are the places that are to be looked at, the next one last.
	left []plan.Place
	// leftOut says why an application is left out of places, until it is settled, and runs is where
	// those run that were left out.
	leftOut map[string]map[plan.Place]error
	runs    map[string]runs
	// others are the programs of others by place, once they were counted.
	others map[plan.Place]int
}

// placeName is what a node remembers a place by.
type placeName struct{ hook, on string }

// newClaims returns the claims of what is to run, and of what runs and is left as it is. All places
// are to be looked at.
func (adm *Round) newClaims() *claims {
	c := &claims{adm: adm, at: map[plan.Place][]*Claim{}, of: map[string][]plan.Place{}, named: map[placeName][]plan.Place{},
		present: map[string][]history.At{}, devices: map[string][]plan.Device{}, leftOut: map[string]map[plan.Place]error{}, runs: map[string]runs{},
		others: map[plan.Place]int{}}
	for at := range adm.present {
		c.present[at.UID] = append(c.present[at.UID], at)
	}
	for _, i := range adm.look.State.Interfaces {
		c.devices[i.Label()] = append(c.devices[i.Label()], i.Device)
	}
	for _, app := range adm.decisions.Want.Applications {
		c.add(app.UID, adm.claimsOf(app))
	}
	for _, uid := range adm.decisions.Want.Frozen {
		c.add(uid, c.frozen(uid))
	}
	for place := range c.at {
		c.left = append(c.left, place)
	}
	slices.SortFunc(c.left, later)
	return c
}

// later orders places, the last one first.
func later(p, q plan.Place) int { return q.Compare(p) }

// next returns the first place that is to be looked at; false where none is.
func (c *claims) next() (plan.Place, bool) {
	if len(c.left) == 0 {
		return plan.Place{}, false
	}
	place := c.left[len(c.left)-1]
	c.left = c.left[:len(c.left)-1]
	return place, true
}

// look has a place looked at once more. It is before most that are left, so near the end.
func (c *claims) look(place plan.Place) {
	if i, found := slices.BinarySearchFunc(c.left, place, later); !found {
		c.left = slices.Insert(c.left, i, place)
	}
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
		c.at[place], c.of[uid] = append(c.at[place], one), append(c.of[uid], place)
	}
}

// frozen are the claims of an application that is left as it is.
func (c *claims) frozen(uid string) map[plan.Place]*Claim {
	all := map[plan.Place]*Claim{}
	for _, at := range c.present[uid] {
		for _, device := range c.devices[at.Interface] {
			one := c.adm.frozenClaim(at, c.adm.present[at])
			if at.Hook == plan.XDP {
				one.Modes = c.adm.modesGiven(uid, device)
			}
			all[plan.Place{Hook: at.Hook, Device: device, Interface: at.Interface}] = &one
		}
	}
	return all
}

// wants reports whether an application is to have a place.
func (c *claims) wants(at history.At) bool {
	return slices.ContainsFunc(c.named[placeName{at.Hook, at.Interface}], func(place plan.Place) bool {
		return slices.ContainsFunc(c.at[place], func(one *Claim) bool { return one.UID == at.UID })
	})
}

// reject takes a version out that does not fit at a place, as RejectAt does.
func (c *claims) reject(place plan.Place, one *Claim, err error) {
	c.adm.noteLost(place, *one, err)
	if _, known := c.runs[one.UID]; !known {
		c.runs[one.UID] = c.adm.runsOf(one.UID)
	}
	if !c.adm.staysWithout(place, *one, c.runs[one.UID]) {
		c.change(one.UID, func() { c.adm.decisions.Reject(one.UID, err) })
		return
	}
	if c.leftOut[one.UID] == nil {
		c.leftOut[one.UID] = map[plan.Place]error{}
		c.lookAtRecords(one.UID)
	}
	c.leftOut[one.UID][place] = err
	delete(c.runs[one.UID].at, atOf(one.UID, place))
	c.remove(place, one.UID)
	c.look(place)
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
	for _, place := range before {
		c.remove(place, uid)
	}
	c.of[uid] = nil
	if i := c.adm.decisions.IndexOf(uid); i >= 0 {
		c.add(uid, c.adm.claimsOf(c.adm.decisions.Want.Applications[i]))
	} else if slices.Contains(c.adm.decisions.Want.Frozen, uid) {
		c.add(uid, c.frozen(uid))
	}
	for _, place := range slices.Concat(before, c.of[uid]) {
		c.look(place)
	}
	c.lookAtRecords(uid)
}

// remove takes the claim of an application to a place away.
func (c *claims) remove(place plan.Place, uid string) {
	c.at[place] = slices.DeleteFunc(c.at[place], func(one *Claim) bool { return one.UID == uid })
}

// lookAtRecords has the places looked at again where an application ran: what is kept for it there
// may have changed.
func (c *claims) lookAtRecords(uid string) {
	for _, at := range c.adm.History.Of(uid) {
		for _, place := range c.named[placeName{at.Hook, at.Interface}] {
			c.look(place)
		}
	}
}
