package admission

import (
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// driverRetry is how long the driver of an interface is not tried again where nothing of the interface itself changed.
const driverRetry = 5 * time.Minute

// drivers are those of interfaces that took no XDP program.
type drivers map[plan.Device]noDriver

// noDriver says that the driver of an interface took no XDP program, and when.
type noDriver struct {
	err   *attach.DriverError
	since time.Time
	// beside are the members that ran when the next reconcile began.
	beside []plan.Member
	// isLifted: one of them left at the time lifted, and another attempt may be made.
	isLifted bool
	lifted   time.Time
}

// NoteNoDriver notes that the driver of an interface did not take a chain: who needs the driver is
// rejected there.
func (adm *Round) NoteNoDriver(d plan.Device, err *attach.DriverError) {
	adm.drivers[d] = noDriver{err: err, since: adm.now, lifted: adm.drivers[d].lifted}
}

// forget forgets what was noted of interfaces that are gone or have another MTU, and, after a while, of those
// that run no chain: another attempt takes nothing from anybody there. Where a chain runs, an attempt lets packets
// pass, so that time alone is no reason for one. A member that left is, for it may be what the driver did not take; but
// a tenant can have its own come and go, so that all of them together are one attempt in a while.
func (ds drivers) forget(look *live.Look, now time.Time) {
	maps.DeleteFunc(ds, func(d plan.Device, is noDriver) bool {
		on, ok := look.FindInterface(d)
		return !ok || on.MTU != is.err.MTU || look.SeenChain(d) == nil && now.Sub(is.since) >= driverRetry
	})
	for d, is := range ds {
		running := look.GivenTo(d)
		left := slices.ContainsFunc(is.beside, func(m plan.Member) bool { return !runsIn(running, m) })
		switch {
		case is.beside == nil:
			is.beside = running
		case left && now.Sub(is.lifted) >= driverRetry:
			is.isLifted, is.lifted = true, now
		}
		ds[d] = is
	}
}

// runsIn reports whether a program is among members, in the same revision.
func runsIn(members []plan.Member, m plan.Member) bool {
	return slices.ContainsFunc(members, func(is plan.Member) bool {
		return is.UID == m.UID && is.Program == m.Program && is.Revision == m.Revision
	})
}

// why says why the driver of an interface runs no XDP program; empty where it may.
func (ds drivers) why(d plan.Device) string {
	if is, ok := ds[d]; ok && !is.isLifted {
		return is.err.Error()
	}
	return ""
}

// ask is how an XDP program asks to run; empty is Auto.
type ask struct {
	program string
	mode    v1alpha1.XDPMode
}

// addMode adds a mode that is asked for, unless it is there.
func addMode(modes []v1alpha1.XDPMode, mode v1alpha1.XDPMode) []v1alpha1.XDPMode {
	if mode == "" || slices.Contains(modes, mode) {
		return modes
	}
	return append(modes, mode)
}

// givenTo returns the members of an application that an interface's chain was given.
func (adm *Round) givenTo(d plan.Device, uid string) []plan.Member {
	byUID, known := adm.given[d]
	if !known {
		byUID = map[string][]plan.Member{}
		for _, m := range adm.look.GivenTo(d) {
			byUID[m.UID] = append(byUID[m.UID], m)
		}
		adm.given[d] = byUID
	}
	return byUID[uid]
}

// modesGiven are the modes that members of a frozen application ask for, each once.
func (adm *Round) modesGiven(uid string, d plan.Device) []v1alpha1.XDPMode {
	var modes []v1alpha1.XDPMode
	for _, m := range adm.givenTo(d, uid) {
		modes = addMode(modes, m.Mode)
	}
	return modes
}

// changesMode reports whether a program of an application that runs at a place asks for another
// mode than it did.
func (adm *Round) changesMode(c *Claim, place plan.Place) bool {
	return place.Hook == plan.XDP && slices.ContainsFunc(adm.givenTo(place.Device, c.UID), func(m plan.Member) bool {
		return !slices.Contains(c.asks, ask{m.Program, m.Mode})
	})
}
