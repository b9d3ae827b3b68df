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

// detach takes a link away. It is forgotten when the kernel agreed, and reported
// until the kernel runs it no more.
func (act *Actor) detach(a plan.Action) error {
	l := act.Look.Set.Links[a.UID][a.Attachment.Key()]
	if l == nil {
		return nil
	}
	return act.Look.Set.Detach(l, act.Look.Facts(l.Path, l.Link), act.Now)
}

// drop removes a revision nothing runs any more.
func (act *Actor) drop(a plan.Action) error {
	r, err := act.Look.Set.DropRevision(a.UID, a.Revision)
	if r != nil {
		act.Measured.Forget(a.UID, a.Revision)
		act.Look.Set.Release("dropped revision", r)
	}
	return err
}

// FinishUnloads looks after what actions of this reconcile or of earlier ones left: the
// pins of former chains, and links that somebody else holds.
func (act *Actor) FinishUnloads() {
	for device, c := range act.Look.Set.Chains {
		if len(c.Former) == 0 || c.Version == nil {
			continue
		}
		a := plan.Action{Verb: plan.SetChain, Device: device, Interface: act.Look.InterfaceName(device), Members: c.Version.Members}
		owners := plan.UIDsOf(c.Former)
		if act.backedOff(owners, a) != nil {
			continue
		}
		err := act.dropFormer(c)
		act.noteChain(a, err)
		for _, uid := range owners {
			act.note(uid, a, err)
		}
	}
	act.Attempts.Sweep(act.Now)
	if act.Look.Set.FollowMakings(act.Now, act.reportMaking) {
		// What waits for these can begin.
		act.Decisions.Again = true
	}
	act.Look.Set.FollowRemnants(act.reportRemnant)
}

// reportRemnant reports a link that the kernel runs still. Nothing can be done about a
// link that somebody else holds but to say so.
func (act *Actor) reportRemnant(uid string, r live.Remnant, isClosing bool, err error) {
	out := act.Decisions.Outcome(uid)
	if isClosing {
		act.reportClosing(uid, out, r)
		return
	}
	if err == nil && act.Now.Sub(r.Since) < remnantGrace {
		out.Unsettled, act.Ending = true, true
		return
	}
	at := r.Attachment
	if err == nil {
		err = fmt.Errorf("detach %s from %s %s: its pin is removed, and link %d runs on, because another pin or process holds it; "+
			"find it with bpftool link show id %d, and end it",
			at.Program, at.Hook, strings.TrimSpace(at.Target.String()), r.Facts.ID, r.Facts.ID)
	}
	out.Errs = append(out.Errs, err)
}

// reportClosing reports a link that is being closed beside the loop.
func (act *Actor) reportClosing(uid string, out *report.Outcome, r live.Remnant) {
	out.Closing = true
	if since := act.Now.Sub(r.Since); since > closeDeadline && r.IsEnding() {
		at := r.Attachment
		out.Errs = append(out.Errs,
			fmt.Errorf("detach %s from %s %s: its pin is removed, and the kernel has not ended link %d for %s; it may wait for a process whose memory is locked: "+
				"see the kernel's log for tasks that hang, and restart the node if that stays",
				at.Program, at.Hook, strings.TrimSpace(at.Place()), r.Facts.ID, since.Round(time.Second)))
	}
	if out.Waits == "" {
		out.Waits = fmt.Sprintf("the kernel ends its links one after the other: %d are being closed", act.Look.Set.Closing(uid, r.Attachment.Application))
	}
}
