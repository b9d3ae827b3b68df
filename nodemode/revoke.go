package nodemode

import (
	"context"
	"maps"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
)

// revoke unloads what runs by a revoked signer and is denied, before the source is waited
// for, which may hang: by the definitions that were read last, and from memory. It evaluates
// nothing that lost no signer, and does nothing else: what a policy unloads, what is not
// defined any more, and what an allowed definition replaces are left to act.
func revoke(ctx context.Context, h *Host) {
	// At a start there are no definitions that were read last: what they say may keep a version.
	if h.settings.evaluator == nil || h.catalog.defs.mayHide == nil {
		return
	}
	revoked := h.settings.trust.Revoked()
	live := h.live()
	maps.DeleteFunc(live, func(_ string, p *intent.Payload) bool { return p.Tombstone || !lifecycle.LostASigner(p, revoked) })
	lost := make([]observation, 0, len(live))
	for _, d := range h.catalog.defs.all {
		if p := live[uidOf(d.app.Identity())]; p != nil {
			lost = append(lost, observation{id: p.Application, def: d, Observation: lifecycle.Observation{Live: p, Request: h.request(d, p)}})
			delete(live, p.UID)
		}
	}
	for _, p := range live {
		lost = append(lost, observation{id: p.Application, Observation: lifecycle.Observation{Live: p, Hidden: true}})
	}
	atOnce(lost, func(s *observation) {
		if s.def.app != nil {
			s.Verdict, s.Err = h.evaluate(ctx, h.question(*s, "definition", s.Request, ""), s.Request, false)
		}
		s.Running = h.evaluateRunning(ctx, *s, revoked, false)
	})
	if ctx.Err() != nil {
		return
	}
	for _, s := range lost {
		o := outcome{observation: s}
		// What policies unload beside that is held here.
		if o.action, o.why = s.Decide(revoked, true); o.action != lifecycle.Unload {
			continue
		}
		// What fails is done again by act, which says so in the status.
		_ = h.handOver(s, o)
	}
}
