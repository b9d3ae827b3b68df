package nodemode

import (
	"context"
	"maps"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// revoke unloads what runs by a revoked signer and is denied, before the source is waited
// for, which may hang: by the definitions that were read last, and from memory. It evaluates
// nothing that lost no signer, and does nothing else: what a policy unloads, what is not
// defined any more, and what an allowed definition replaces are left to act. It reports whether
// it unloaded anything.
func revoke(ctx context.Context, h *Host) (isUnloaded bool) {
	if h.settings.evaluator == nil {
		return false
	}
	revoked := h.settings.trust.Revoked()
	lost := lostOf(h, func(p *intent.Payload) bool { return !p.Tombstone && lifecycle.LostASigner(p, revoked) })
	atOnce(lost, func(s *observation) {
		if s.def.app != nil {
			s.Verdict, s.Err = h.evaluate(ctx, h.question(*s, "definition", s.Request, ""), s.Request, false)
		}
		s.Running = h.evaluateRunning(ctx, *s, revoked, false)
	})
	if ctx.Err() != nil {
		return false
	}
	for _, s := range lost {
		o := outcome{observation: s}
		// What policies unload beside that is held here.
		if o.action, o.why = s.Decide(revoked, true); o.action != lifecycle.Unload {
			continue
		}
		if uid := uidOf(s.id); h.tags[uid] == nil {
			// After a start, its tag stays what it was, as if it ran.
			h.tags[uid] = &tag{generation: s.Live.Generation, digest: s.Live.ImageDigest}
		}
		// What fails is done again by act, which says so in the status.
		isUnloaded = h.handOver(s, o) == nil || isUnloaded
	}
	return isUnloaded
}

// lostOf returns those that run and lost something, with their definitions as they were read last. At a start
// that may have been by an earlier run; what that did not know, which its definition may keep, is not among them.
func lostOf(h *Host, isLost func(*intent.Payload) bool) []observation {
	live := h.live()
	maps.DeleteFunc(live, func(_ string, p *intent.Payload) bool { return !isLost(p) })
	lost := make([]observation, 0, len(live))
	if h.catalog.defs.mayHide == nil {
		for _, p := range live {
			if s, ok := h.defined.observe(p); ok && !h.defined.isLeftOut(p) {
				lost = append(lost, s)
			}
		}
		return lost
	}
	for _, d := range h.catalog.defs.all {
		if p := live[uidOf(d.app.Identity())]; p != nil {
			lost = append(lost, observation{id: p.Application, def: d, Observation: lifecycle.Observation{Live: p, Request: h.request(d, p)}})
			delete(live, p.UID)
		}
	}
	for _, p := range live {
		lost = append(lost, observation{id: p.Application, Observation: lifecycle.Observation{Live: p, Hidden: true}})
	}
	return lost
}

// refreshCatalog waits for the source, and has a revocation act meanwhile that is written, or whose registry answers.
func refreshCatalog(ctx context.Context, h *Host) {
	timer := time.NewTimer(h.catalog.fetch(ctx))
	defer timer.Stop()
	for !h.catalog.take() {
		select {
		case f := <-h.catalog.fetching:
			h.catalog.read(f)
			return
		case <-timer.C:
			h.catalog.err = errFetching
			return
		case <-ctx.Done():
			h.catalog.err = ctx.Err()
			return
		case <-h.settingsChanged:
			h.settings.refresh(ctx)
			revoke(ctx, h)
		case <-h.evaluations.Ended():
			revoke(ctx, h)
		}
	}
}

// amend reads settings that changed amid a sync, and has revocations act. It reports whether what the sync has found out so far
// holds no more.
func amend(ctx context.Context, h *Host) bool {
	before, revoked := h.settings.evaluator.Revision(), h.settings.trust.Revoked()
	h.settings.refresh(ctx)
	isUnloaded, isChanged := revoke(ctx, h), h.settings.evaluator.Revision() != before
	if isChanged && h.rounds > mostRounds && maps.Equal(revoked, h.settings.trust.Revoked()) {
		h.poke()
		return isUnloaded
	}
	return isUnloaded || isChanged
}

// isAmended is amend if settings changed.
func isAmended(ctx context.Context, h *Host) bool {
	select {
	case <-h.settingsChanged:
		return amend(ctx, h)
	default:
		return false
	}
}

// unlessAmended does something with every observation. Where settings change meanwhile, they are read at once, and it reports
// false as soon as what is under way has ended.
func unlessAmended(ctx context.Context, h *Host, all []observation, do func(*observation)) bool {
	needed, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		atOnce(all, func(s *observation) {
			if needed.Err() == nil {
				do(s)
			}
		})
	}()
	for {
		select {
		case <-done:
			return needed.Err() == nil
		case <-h.settingsChanged:
			if amend(ctx, h) {
				stop()
			}
		}
	}
}
