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
func (rec *reconcile) detach(a plan.Action) error {
	l := rec.live.Links[a.UID][a.Attachment.Key()]
	if l == nil {
		return nil
	}
	return rec.live.Detach(l, rec.look.Facts(l.Path, l.Link), rec.now)
}

// drop removes a revision nothing runs any more.
func (rec *reconcile) drop(a plan.Action) error {
	r, err := rec.live.DropRevision(a.UID, a.Revision)
	if r != nil {
		rec.admission.profiles.forget(a.UID, a.Revision)
		logClose(rec.opts.Log, "dropped revision", r)
	}
	return err
}

// finishUnloads looks after what actions of this reconcile or of earlier ones left: the
// pins of former chains, and links that somebody else holds.
func (rec *reconcile) finishUnloads() {
	for index, c := range rec.live.Chains {
		if len(c.Former) == 0 || c.Version == nil {
			continue
		}
		a := plan.Action{Verb: plan.SetChain, Ifindex: index, Interface: rec.look.InterfaceName(index), Members: c.Version.Members}
		owners := plan.UIDsOf(c.Former)
		if rec.backedOff(owners, a) != nil {
			continue
		}
		err := rec.dropFormer(c)
		rec.noteChain(a, err)
		for _, uid := range owners {
			rec.note(uid, a, err)
		}
	}
	rec.chains.attempts.Sweep(rec.now)
	rec.live.FollowRemnants(rec.reportRemnant)
}

// reportRemnant reports a link that the kernel runs still. Nothing can be done about a
// link that somebody else holds but to say so.
func (rec *reconcile) reportRemnant(uid string, r live.Remnant, err error) {
	out := rec.outcome(uid)
	if err == nil && rec.now.Sub(r.Since) < remnantGrace {
		out.Unsettled, rec.ending = true, true
		return
	}
	at := r.Attachment
	if err == nil {
		err = fmt.Errorf("detach %s from %s %s: its pin is removed, and link %d runs on, because another pin or process holds it; find it with bpftool link show id %d, and end it",
			at.Program, at.Hook, strings.TrimSpace(at.Target.String()), r.Facts.ID, r.Facts.ID)
	}
	out.Errs = append(out.Errs, err)
}

// leaves reports whether anything of an application is left on the node.
func (rec *reconcile) leaves(uid string) bool {
	return rec.live.Has(uid) || len(rec.unmanagedFiles[uid]) > 0
}
