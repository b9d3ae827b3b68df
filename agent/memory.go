package agent

import (
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/history"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/live"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/report"
	"github.com/skep-dev/skep/intent"
)

// mapMemory is the memory that this node has for maps, where it is limited.
type mapMemory struct {
	// limit is in bytes; 0 sets none.
	limit   int64
	history *history.History
	live    *live.Set
	// refused says why the last reconcile had no memory for the maps of a load, by its key.
	refused map[string]error
}

// noMemoryError: the maps of a version do not fit, or wait for older ones, in the memory
// that this node has for maps. Every reconcile looks again, since that takes no attempt.
type noMemoryError struct{ err error }

// Error implements error.
func (n *noMemoryError) Error() string { return n.err.Error() }

// Unwrap returns why.
func (n *noMemoryError) Unwrap() error { return n.err }

// claim is the claim of a revision that is to be loaded.
func (m *mapMemory) claim(o intent.Opened, memory uint64) *plan.Claim {
	payload := o.Payload()
	c := &plan.Claim{UID: payload.UID, Identity: payload.Application, Seniority: plan.Arriving, Created: payload.CreatedAt(),
		Need: plan.Need{Memory: int(memory)}}
	before, ran := m.history.Records[history.InMemory(payload.UID)]
	held := m.live.Revisions[payload.UID]
	switch {
	case ran && before.Covers(o.Revision(), nil):
		c.Seniority = plan.Remembered
	case len(held) == 1:
		// It runs beside what it replaces. Of two that run so, no third is owed room.
		c.Seniority, c.Held = plan.Replacing, memoryOf(held)
	case len(held) > 1:
		c.Seniority = plan.Replacing
	case ran:
		c.Seniority, c.Held = plan.Replacing, before.Need
	}
	return c
}

// explain returns why a load that is pending has no room, else pending itself.
func (m *mapMemory) explain(key string, out *report.Outcome, pending error) error {
	err := m.refused[key]
	if err == nil {
		return pending
	}
	if isPending(err) {
		out.Waits = waitsFor(plan.MapMemory())
	}
	return err
}

// memoryOf is what the maps of revisions may take.
func memoryOf(revisions map[string]*kernel.Revision) plan.Need {
	return plan.Need{Memory: int(kernel.MapMemory(revisions))}
}

// admitLoads grants the memory for maps to what is to be loaded: first to what is in
// the kernel, then to what this node remembers to have run, then to the oldest
// application. What does not fit leaves the queue, and the next reconcile has the error.
func (adm *admissionRound) admitLoads() {
	was := adm.memory.refused
	adm.memory.refused = map[string]error{}
	if !slices.ContainsFunc(adm.loads.Queued, func(r loads.Request) bool { return r.Claim != nil }) {
		return
	}
	claims := adm.memoryClaims()
	refused := plan.Admit(plan.MapMemory(), claims, plan.Limits{Memory: int(adm.memory.limit), SharePercent: adm.sharePercent})
	taken := 0
	for _, c := range claims {
		if refused[c.UID] == nil {
			taken += c.Need.Memory
		}
	}
	unweighed := adm.unweighed()
	adm.loads.Queued = slices.DeleteFunc(adm.loads.Queued, func(r loads.Request) bool {
		if r.Claim == nil {
			return false
		}
		err := refused[r.Key()]
		if err == nil && int64(taken) > adm.memory.limit/2 {
			err = adm.waitFor(unweighed, r.Claim)
		}
		if err == nil {
			return false
		}
		adm.memory.refused[r.Key()] = &noMemoryError{fmt.Errorf("load %s: %w", r.Claim.Identity, err)}
		adm.noteNoMemory(was[r.Key()], adm.memory.refused[r.Key()])
		return true
	})
}

// noteNoMemory has the next reconcile say why there is no room, and logs once that there is
// none.
func (adm *admissionRound) noteNoMemory(was, now error) {
	if was == nil && !isPending(now) {
		adm.log.Warn("no room for maps; it is loaded when there is", "error", now)
	}
	adm.decisions.again = adm.decisions.again || was == nil || was.Error() != now.Error()
}

// memoryClaims are the claims to the memory for maps. Those of the queue have the keys
// of their loads as UID.
func (adm *admissionRound) memoryClaims() []plan.Claim {
	var all []plan.Claim
	here := map[string]bool{}
	for uid, revisions := range adm.look.Set.Revisions {
		c := plan.Claim{UID: uid, Seniority: plan.Running, Need: memoryOf(revisions)}
		if app := adm.decisions.application(uid); app != nil {
			c.Identity = app.Newest.Payload().Application
		}
		all, here[uid] = append(all, c), len(revisions) > 0
	}
	add := func(r loads.Request, isLoading bool) {
		if r.Claim == nil {
			return
		}
		c := *r.Claim
		c.UID, here[c.UID] = r.Key(), true
		if isLoading {
			c.Seniority = plan.Running
		}
		all = append(all, c)
	}
	for _, r := range adm.loads.Current() {
		add(r, true)
	}
	asked := map[string]bool{}
	for _, r := range adm.loads.Queued {
		if !asked[r.Key()] {
			add(r, false)
		}
		asked[r.Key()] = true
	}
	return append(all, adm.keptClaims(plan.MapMemory(), here)...)
}

// unweighed are the claims of applications that have no maps here, and whose object is
// being fetched or weighed: what they need is not known yet.
func (adm *admissionRound) unweighed() []plan.Claim {
	weighed := map[string]bool{}
	for _, r := range append(adm.loads.Current(), adm.loads.Queued...) {
		if r.Claim != nil {
			weighed[r.Claim.UID] = true
		}
	}
	var all []plan.Claim
	for _, app := range adm.decisions.applications {
		uid := app.Newest.Payload().UID
		if !adm.decisions.isOnItsWay(uid) || weighed[uid] || len(adm.look.Set.Revisions[uid]) > 0 {
			continue
		}
		if c := adm.memory.claim(app.Newest, 0); c.Seniority != plan.Remembered {
			all = append(all, *c)
		}
	}
	return all
}

// waitFor returns errQueued where an application waits for an older one, whose need is
// not known yet: for no longer than it waits at any other place.
func (adm *admissionRound) waitFor(unweighed []plan.Claim, c *plan.Claim) error {
	precedes := func(older plan.Claim) bool { return older.Precedes(*c) < 0 }
	if c.Seniority <= plan.Remembered || !slices.ContainsFunc(unweighed, precedes) || adm.waitedEnough(history.InMemory(c.UID)) {
		return nil
	}
	return errQueued
}

// addMemory adds what has maps in the kernel to what runs, where the memory for them is
// limited. An application with two revisions is in the middle of an update.
func (adm *admissionRound) addMemory(now map[history.At]history.Record) {
	if adm.memory.limit == 0 {
		return
	}
	for uid, revisions := range adm.look.Set.Revisions {
		one := history.Record{UID: uid, Hook: plan.MapMemory().Hook}
		for name := range revisions {
			one.Revision = name
		}
		if len(revisions) > 1 {
			one.Revision = ""
		}
		if memoryOf(revisions).Memory > 0 {
			now[one.At()] = one
		}
	}
}
