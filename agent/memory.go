package agent

import (
	"fmt"
	"io"
	"slices"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/build"
	"github.com/skep-dev/skep/agent/history"
	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/loads"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/intent"
)

// noMemoryError: the maps of a version do not fit, or wait for older ones, in the memory
// that this node has for maps. Every reconcile looks again, since that takes no attempt.
type noMemoryError struct{ err error }

// Error implements error.
func (n *noMemoryError) Error() string { return n.err.Error() }

// Unwrap returns why.
func (n *noMemoryError) Unwrap() error { return n.err }

// askWithin asks for the load of an intent's revision with its claim to the memory for
// maps, where that is limited. It fails with loads.ErrLoading until the maps are weighed.
func (rec *reconcile) askWithin(key string, o intent.Opened, old *kernel.Revision) (loads.Request, error) {
	r, err := rec.askRevision(o, old)
	if err != nil || rec.opts.MapMemory == 0 {
		return r, err
	}
	key = "memory of " + key
	got, err := loads.Get[build.Memory](rec.loads, key, func() (loads.Request, error) { return rec.askWeight(r, o, old), nil })
	if isPending(err) {
		return loads.Request{}, err
	}
	if err != nil {
		rec.loads.Take(key)
		return loads.Request{}, err
	}
	// The weight stays among the results for as long as the load is asked for.
	r.Claim = rec.memoryClaim(o, got.Bytes)
	return r, nil
}

// askWeight asks for the maps to be weighed that a load makes. It waits in turn with
// loads, so that no more objects are open at once, but does not use up the turn of its
// namespace.
func (rec *reconcile) askWeight(load loads.Request, o intent.Opened, old *kernel.Revision) loads.Request {
	files := rec.objects
	return loads.Request{
		Line: "memory of " + load.Line, Tenants: []string{"memory of " + o.Payload().Application.Namespace}, Urgency: load.Urgency,
		Start: func() (func(*btf.Cache) (io.Closer, error), error) {
			from, err := old.Share()
			if err != nil {
				return nil, err
			}
			return func(*btf.Cache) (io.Closer, error) {
				defer func() { _ = from.Close() }()
				return build.Weigh(o, files, from)
			}, nil
		},
	}
}

// memoryClaim is the claim of a revision that is to be loaded.
func (rec *reconcile) memoryClaim(o intent.Opened, memory uint64) *plan.Claim {
	payload := o.Payload()
	c := &plan.Claim{UID: payload.UID, Identity: payload.Application, Seniority: plan.Arriving, Created: payload.CreatedAt(),
		Need: plan.Need{Memory: int(memory)}}
	before, ran := rec.history.Records[history.InMemory(payload.UID)]
	held := rec.live.Revisions[payload.UID]
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

// memoryOf is what the maps of revisions may take.
func memoryOf(revisions map[string]*kernel.Revision) plan.Need {
	return plan.Need{Memory: int(kernel.MapMemory(revisions))}
}

// admitLoads grants the memory for maps to what is to be loaded: first to what is in
// the kernel, then to what this node remembers to have run, then to the oldest
// application. What does not fit leaves the queue, and the next reconcile has the error.
func (rec *reconcile) admitLoads() {
	was := rec.noMemory
	rec.noMemory = map[string]error{}
	if !slices.ContainsFunc(rec.loads.Queued, func(r loads.Request) bool { return r.Claim != nil }) {
		return
	}
	claims := rec.memoryClaims()
	refused := plan.Admit(plan.MapMemory(), claims, plan.Limits{Memory: int(rec.opts.MapMemory), SharePercent: rec.opts.NamespaceShare})
	taken := 0
	for _, c := range claims {
		if refused[c.UID] == nil {
			taken += c.Need.Memory
		}
	}
	unweighed := rec.unweighed()
	rec.loads.Queued = slices.DeleteFunc(rec.loads.Queued, func(r loads.Request) bool {
		if r.Claim == nil {
			return false
		}
		err := refused[r.Key()]
		if err == nil && int64(taken) > rec.opts.MapMemory/2 {
			err = rec.waitFor(unweighed, r.Claim)
		}
		if err == nil {
			return false
		}
		rec.noMemory[r.Key()] = &noMemoryError{fmt.Errorf("load %s: %w", r.Claim.Identity, err)}
		rec.noteNoMemory(was[r.Key()], rec.noMemory[r.Key()])
		return true
	})
}

// noteNoMemory has the next reconcile say why there is no room, and logs once that there is
// none.
func (rec *reconcile) noteNoMemory(was, now error) {
	if was == nil && !isPending(now) {
		rec.opts.Log.Warn("no room for maps; it is loaded when there is", "error", now)
	}
	rec.again = rec.again || was == nil || was.Error() != now.Error()
}

// memoryClaims are the claims to the memory for maps. Those of the queue have the keys
// of their loads as UID.
func (rec *reconcile) memoryClaims() []plan.Claim {
	var all []plan.Claim
	here := map[string]bool{}
	for uid, revisions := range rec.live.Revisions {
		c := plan.Claim{UID: uid, Seniority: plan.Running, Need: memoryOf(revisions)}
		if app := rec.application(uid); app != nil {
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
	for _, r := range rec.loads.Current() {
		add(r, true)
	}
	asked := map[string]bool{}
	for _, r := range rec.loads.Queued {
		if !asked[r.Key()] {
			add(r, false)
		}
		asked[r.Key()] = true
	}
	return append(all, rec.keptClaims(plan.MapMemory(), here)...)
}

// unweighed are the claims of applications that have no maps here, and whose object is
// being fetched or weighed: what they need is not known yet.
func (rec *reconcile) unweighed() []plan.Claim {
	weighed := map[string]bool{}
	for _, r := range append(rec.loads.Current(), rec.loads.Queued...) {
		if r.Claim != nil {
			weighed[r.Claim.UID] = true
		}
	}
	var all []plan.Claim
	for _, app := range rec.apps {
		uid := app.Newest.Payload().UID
		if !rec.isOnItsWay(uid) || weighed[uid] || len(rec.live.Revisions[uid]) > 0 {
			continue
		}
		if c := rec.memoryClaim(app.Newest, 0); c.Seniority != plan.Remembered {
			all = append(all, *c)
		}
	}
	return all
}

// waitFor returns errQueued where an application waits for an older one, whose need is
// not known yet: for no longer than it waits at any other place.
func (rec *reconcile) waitFor(unweighed []plan.Claim, c *plan.Claim) error {
	precedes := func(older plan.Claim) bool { return older.Precedes(*c) < 0 }
	if c.Seniority <= plan.Remembered || !slices.ContainsFunc(unweighed, precedes) || rec.waitedEnough(history.InMemory(c.UID)) {
		return nil
	}
	return errQueued
}

// whyNoMemory returns why a load that is pending has no room, else pending itself.
func (rec *reconcile) whyNoMemory(key, uid string, pending error) error {
	err := rec.noMemory[key]
	if err == nil {
		return pending
	}
	if out := rec.outcomes[uid]; isPending(err) && out != nil {
		out.Waits = waitsFor(plan.MapMemory())
	}
	return err
}

// addMemory adds what has maps in the kernel to what runs, where the memory for them is
// limited. An application with two revisions is in the middle of an update.
func (rec *reconcile) addMemory(now map[history.At]history.Record) {
	if rec.opts.MapMemory == 0 {
		return
	}
	for uid, revisions := range rec.live.Revisions {
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
