package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/intent"
)

// Memory is the memory that this node has for maps and programs, where it is limited.
type Memory struct {
	// Limit is in bytes; 0 sets none.
	Limit   int64
	history *history.History
	open    *live.Open
	// refused says why the last reconcile had no memory for the maps of a load, by its key.
	refused map[string]error
}

// Claim is the claim of a revision that is to be loaded.
func (m *Memory) Claim(o intent.Opened, memory uint64) *plan.Claim {
	payload := o.Payload()
	c := &plan.Claim{UID: payload.UID, Identity: payload.Application, Seniority: plan.Arriving, Created: payload.CreatedAt(),
		Need: plan.Need{Memory: int(memory)}}
	before, ran := m.history.Lookup(history.InMemory(payload.UID))
	held := len(m.open.Revisions()[payload.UID])
	switch {
	case ran && before.Covers(o.Revision(), nil):
		c.Seniority = plan.Remembered
	case held == 1:
		// It runs beside what it replaces. Of two that run so, no third is owed room.
		c.Seniority, c.Held = plan.Replacing, memoryNeed(loader.Memory(m.open.Revisions())[payload.UID])
	case held > 1:
		c.Seniority = plan.Replacing
	case ran:
		c.Seniority, c.Held = plan.Replacing, before.Need
	}
	return c
}

// Explain returns why a load that is pending has no room, else pending itself.
func (m *Memory) Explain(key string, pending error) error {
	return cmp.Or(m.refused[key], pending)
}

// memoryNeed is a need of so many bytes for maps.
func memoryNeed(bytes uint64) plan.Need { return plan.Need{Memory: int(bytes)} }

// memoryOf is what the maps and programs of one revision of an application may take, without maps that
// another application has.
func (adm *Round) memoryOf(uid, revision string) plan.Need {
	all := maps.Clone(adm.look.Revisions())
	all[uid] = map[string]*loader.Revision{revision: all[uid][revision]}
	return memoryNeed(loader.Memory(all)[uid])
}

// AdmitLoads grants the memory for maps and programs to what is to be loaded: first to what is in
// the kernel, then to what this node remembers to have run, then to the oldest
// application. What does not fit leaves the queue, and the next reconcile has the error.
func (adm *Round) AdmitLoads() {
	was := adm.Memory.refused
	adm.Memory.refused = map[string]error{}
	if !slices.ContainsFunc(adm.loadRound.Queued, func(r build.Request) bool { return r.Claim != nil }) {
		return
	}
	claims := adm.memoryClaims()
	refused := plan.Admit(plan.MapMemory(), claims, plan.Limits{Memory: int(adm.Memory.Limit), SharePercent: adm.SharePercent})
	taken := 0
	for _, c := range claims {
		if refused[c.UID] == nil {
			taken += c.Need.Memory
		}
	}
	unweighed := adm.unweighed()
	adm.loadRound.Queued = slices.DeleteFunc(adm.loadRound.Queued, func(r build.Request) bool {
		if r.Claim == nil {
			return false
		}
		err := refused[r.Key()]
		if err == nil && int64(taken) > adm.Memory.Limit/2 {
			err = adm.waitFor(unweighed, r.Claim)
		}
		if err == nil {
			return false
		}
		adm.Memory.refused[r.Key()] = &decide.NoMemoryError{Err: fmt.Errorf("load %s: %w", r.Claim.Identity, err)}
		adm.noteNoMemory(was[r.Key()], adm.Memory.refused[r.Key()])
		return true
	})
}

// noteNoMemory has the next reconcile say why there is no room, and logs once that there is
// none.
func (adm *Round) noteNoMemory(was, now error) {
	if was == nil && !decide.IsPending(now) {
		adm.Log.Warn("no room for maps and programs; it is loaded when there is", "error", now)
	}
	adm.decisions.Again = adm.decisions.Again || was == nil || was.Error() != now.Error()
}

// memoryClaims are the claims to the memory for maps. Those of the queue have the keys
// of their loads as UID.
func (adm *Round) memoryClaims() []plan.Claim {
	var all []plan.Claim
	here, memory := map[string]bool{}, loader.Memory(adm.look.Revisions())
	for uid, revisions := range adm.look.Revisions() {
		c := plan.Claim{UID: uid, Seniority: plan.Running, Need: memoryNeed(memory[uid])}
		if app := adm.decisions.Application(uid); app != nil {
			c.Identity = app.Newest.Payload().Application
		}
		all, here[uid] = append(all, c), len(revisions) > 0
	}
	add := func(r build.Request, isLoading bool) {
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
	for _, r := range adm.loadRound.Current() {
		add(r, true)
	}
	asked := map[string]bool{}
	for _, r := range adm.loadRound.Queued {
		if !asked[r.Key()] {
			add(r, false)
		}
		asked[r.Key()] = true
	}
	return append(all, adm.keptClaims(plan.MapMemory(), func(uid string) bool { return here[uid] })...)
}

// unweighed are the claims of applications that have no maps here, and whose object is
// being fetched or weighed: what they need is not known yet.
func (adm *Round) unweighed() []plan.Claim {
	weighed := map[string]bool{}
	for _, r := range append(adm.loadRound.Current(), adm.loadRound.Queued...) {
		if r.Claim != nil {
			weighed[r.Claim.UID] = true
		}
	}
	var all []plan.Claim
	for _, app := range adm.decisions.Applications {
		uid := app.Newest.Payload().UID
		if !adm.decisions.IsOnItsWay(uid) || weighed[uid] || len(adm.look.Revisions()[uid]) > 0 {
			continue
		}
		if c := adm.Memory.Claim(app.Newest, 0); c.Seniority != plan.Remembered {
			all = append(all, *c)
		}
	}
	return all
}

// waitFor returns a *decide.QueuedError where an application waits for an older one, whose need is
// not known yet: for no longer than it waits at any other place.
func (adm *Round) waitFor(unweighed []plan.Claim, c *plan.Claim) error {
	precedes := func(older plan.Claim) bool { return older.Precedes(c) < 0 }
	if c.Seniority <= plan.Remembered || !slices.ContainsFunc(unweighed, precedes) || adm.waits.isOver(history.InMemory(c.UID), adm.now) {
		return nil
	}
	return &decide.QueuedError{Why: waitsFor(plan.MapMemory())}
}

// addMemory adds what has maps in the kernel to what runs, where the memory for them is
// limited. An application with two revisions is in the middle of an update.
func (adm *Round) addMemory(now map[history.At]history.Record) {
	if adm.Memory.Limit == 0 {
		return
	}
	memory := loader.Memory(adm.look.Revisions())
	for uid, revisions := range adm.look.Revisions() {
		one := history.Record{UID: uid, Hook: plan.MapMemory().Hook}
		for name := range revisions {
			one.Revision = name
		}
		if len(revisions) > 1 {
			one.Revision = ""
		}
		if memory[uid] > 0 {
			now[one.At()] = one
		}
	}
}
