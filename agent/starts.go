package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/containers"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/starts"
)

// letStart tells the containers that wait to start what is attached.
func (rec *reconcile) letStart() {
	if s := rec.env.starts; s != nil {
		s.Reconciled(rec.loadedInPods(s), rec.pods.Snapshot, rec.isComing)
	}
}

// loadedInPods are the applications that choose pods and are in the kernel.
func (rec *reconcile) loadedInPods(s *starts.Starts) []starts.Application {
	var all []starts.Application
	for _, app := range rec.apps {
		payload := app.Newest.Payload()
		out := rec.decisions.Outcomes[payload.UID]
		if out == nil {
			continue
		}
		if out.Live == nil {
			// What waits for its chain is in the kernel still.
			if one, ok := s.Loaded(payload.UID); ok && (out.Pending || out.Unsettled) {
				all = append(all, one)
			}
			continue
		}
		if one := starts.Of(out.Live.Payload()); len(one.Attachments) > 0 {
			all = append(all, one)
		}
	}
	return all
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
