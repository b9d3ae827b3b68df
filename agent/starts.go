package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/containers"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/starts"
)

// letStart tells the containers that wait to start what is attached.
func (rec *reconcile) letStart() {
	s := rec.env.starts
	if s == nil {
		return
	}
	var all []starts.Application
	for _, app := range rec.apps {
		payload := app.Newest.Payload()
		if out := rec.decisions.Outcomes[payload.UID]; out != nil {
			all = append(all, starts.Application{UID: payload.UID, Identity: payload.Application, Live: out.Live, IsComing: out.Pending || out.Unsettled})
		}
	}
	s.Reconciled(all, rec.pods.Snapshot, rec.isComing)
}

// isComing reports whether something of an application is to be attached in a container and is not
// yet, though nothing failed.
func (rec *reconcile) isComing(uid string, c containers.Container) bool {
	out := rec.decisions.Outcomes[uid]
	if out == nil || out.Tried {
		return false
	}
	return out.Unsettled || out.PutOff || out.Live == nil && out.Pending || rec.awaitsChain(uid, c.Pod.NetnsID)
}

// awaitsChain reports whether an application's XDP programs are not yet in the chains of a network
// namespace.
func (rec *reconcile) awaitsChain(uid string, netns uint64) bool {
	i := rec.decisions.IndexOf(uid)
	if i < 0 {
		return false
	}
	return slices.ContainsFunc(rec.decisions.Want.Applications[i].Attachments, func(at plan.Attachment) bool {
		if at.Hook != plan.XDP || at.NetnsID != netns {
			return false
		}
		c := rec.loop.live.Chains[at.Device()]
		return c == nil || c.Version == nil || !slices.Contains(plan.UIDsOf(c.Version.Members), uid)
	})
}
