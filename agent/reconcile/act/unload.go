package act

import (
	"fmt"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// remnantGrace is how long the kernel may take to end a link that was closed: it
// frees links and inodes in the background.
const remnantGrace = 10 * time.Second

// closeDeadline is how long a link may wait for its close, and for the kernel to end it then,
// before that is an error.
const closeDeadline = time.Minute

// ender takes links and revisions away, and reports what the kernel has not ended.
type ender struct {
	*Options
	// ending: the kernel has yet to end links that were closed.
	ending bool
}

// detach takes a link away. It is forgotten when the kernel agreed, and reported
// until the kernel runs it no more.
func (en *ender) detach(a plan.Action) error {
	l := en.Look.Link(a.UID, a.Attachment.Key())
	if l == nil {
		return nil
	}
	return en.Look.Set.Detach(l, en.Look.Facts(l), en.Now)
}

// drop removes a revision nothing runs any more.
func (en *ender) drop(a plan.Action) error {
	r, err := en.Look.Set.DropRevision(a.UID, a.Revision)
	if r != nil {
		en.Measured.Forget(a.UID, a.Revision)
		en.Look.Set.Release("dropped revision", r)
	}
	return err
}

// FinishUnloads looks after what actions of this reconcile or of earlier ones left: the
// pins of former chains, and links that somebody else holds.
func (act *Actor) FinishUnloads() {
	for device, c := range act.Look.Chains() {
		if len(c.Former) == 0 || c.Version == nil {
			continue
		}
		a := plan.Action{Verb: plan.SetChain, Device: device, Interface: act.Look.InterfaceName(device), Members: c.Version.Members}
		owners := plan.UIDsOf(c.Former)
		if act.backedOff(owners, a) != nil {
			continue
		}
		err := act.chains.dropFormer(c)
		act.noteChain(a, err)
		for _, uid := range owners {
			act.note(uid, a, err)
		}
	}
	act.reportUnswitched()
	act.Attempts.Sweep(act.Now)
	if act.Look.Set.Makings.Follow(act.Now, act.ender.reportMaking) {
		// What waits for these can begin.
		act.Decisions.Again = true
	}
	act.Look.Set.Remnants.Follow(act.IsHurried, act.ender.reportRemnant)
}

// reportUnswitched reports what could be neither switched off nor taken away.
func (act *Actor) reportUnswitched() {
	for uid, err := range act.unswitched {
		if act.Look.HasLinks(uid) {
			out := act.Decisions.Outcome(uid)
			out.Errs = append(out.Errs, fmt.Errorf("switch off its programs: %w", err))
		}
	}
}

// reportRemnant reports a link that the kernel runs still. Nothing can be done about a
// link that somebody else holds but to say so.
func (en *ender) reportRemnant(uid string, r live.Remnant, isClosing bool, err error) {
	out := en.Decisions.Outcome(uid)
	if isClosing {
		en.reportClosing(uid, out, r)
		return
	}
	if err == nil && en.Now.Sub(r.Since) < remnantGrace {
		out.Leave(report.Answer{})
		en.ending = true
		return
	}
	at := r.Attachment
	if err == nil {
		// What else the node runs is told to administrators.
		holder, who := "", "have an administrator "
		if !at.Application.IsNamespaced() {
			holder, who = fmt.Sprintf(": %s", en.LookupRound.Host().Occupants.Holders(r.Facts.ID)), ""
		}
		err = fmt.Errorf("detach %s from %s %s: its pin is removed, and link %d runs on, because another pin or process holds it%s; "+
			"%sremove the pin, or end the process", at.Program, at.Hook, strings.TrimSpace(at.Target.String()), r.Facts.ID, holder, who)
	}
	out.Errs = append(out.Errs, err)
}

// reportClosing reports a link that is being closed beside the loop.
func (en *ender) reportClosing(uid string, out *report.Outcome, r live.Remnant) {
	if since := en.Now.Sub(r.Since); since > closeDeadline && r.IsEnding() {
		at := r.Attachment
		out.Errs = append(out.Errs,
			fmt.Errorf("detach %s from %s %s: its pin is removed, and the kernel has not ended link %d for %s; it may wait for a process whose memory is locked: "+
				"see the kernel's log for tasks that hang, and restart the node if that stays",
				at.Program, at.Hook, strings.TrimSpace(at.Place()), r.Facts.ID, since.Round(time.Second)))
	}
	if out.WhatEnds() == "" {
		closing := en.Look.Set.Remnants.Closing(uid, r.Attachment.Application)
		out.Leave(report.Ending{Why: fmt.Sprintf("the kernel ends its links one after the other: %d are being closed", closing)})
	}
}
