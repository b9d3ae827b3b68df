package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/live"
	"github.com/skep-dev/skep/agent/plan"
)

// remnantGrace is how long the kernel may take to end a link that was closed: it
// frees links and inodes in the background.
const remnantGrace = 10 * time.Second

// detach takes a link away. It is forgotten when the kernel agreed, and reported
// until the kernel runs it no more.
func (act *actor) detach(a plan.Action) error {
	l := act.look.Set.Links[a.UID][a.Attachment.Key()]
	if l == nil {
		return nil
	}
	return act.look.Set.Detach(l, act.look.Facts(l.Path, l.Link), act.now)
}

// drop removes a revision nothing runs any more.
func (act *actor) drop(a plan.Action) error {
	r, err := act.look.Set.DropRevision(a.UID, a.Revision)
	if r != nil {
		act.measured.forget(a.UID, a.Revision)
		act.look.Set.Release("dropped revision", r)
	}
	return err
}

// finishUnloads looks after what actions of this reconcile or of earlier ones left: the
// pins of former chains, and links that somebody else holds.
func (act *actor) finishUnloads() {
	for index, c := range act.look.Set.Chains {
		if len(c.Former) == 0 || c.Version == nil {
			continue
		}
		a := plan.Action{Verb: plan.SetChain, Ifindex: index, Interface: act.look.InterfaceName(index), Members: c.Version.Members}
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
	act.attempts.Sweep(act.now)
	act.look.Set.FollowRemnants(act.reportRemnant)
}

// reportRemnant reports a link that the kernel runs still. Nothing can be done about a
// link that somebody else holds but to say so.
func (act *actor) reportRemnant(uid string, r live.Remnant, err error) {
	out := act.decisions.outcome(uid)
	if err == nil && act.now.Sub(r.Since) < remnantGrace {
		out.Unsettled, act.ending = true, true
		return
	}
	at := r.Attachment
	if err == nil {
		err = fmt.Errorf("detach %s from %s %s: its pin is removed, and link %d runs on, because another pin or process holds it; find it with bpftool link show id %d, and end it",
			at.Program, at.Hook, strings.TrimSpace(at.Target.String()), r.Facts.ID, r.Facts.ID)
	}
	out.Errs = append(out.Errs, err)
}
