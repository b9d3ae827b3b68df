package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/starts"
)

// letStart tells the containers that wait to start what is attached.
func (rec *reconcile) letStart() {
	if s := rec.env.starts; s != nil {
		s.Reconciled(rec.loadedInPods(s), rec.seen.Pods.Snapshot, rec.isComing)
	}
}

// loadedInPods are the applications that choose pods and are in the kernel.
func (rec *reconcile) loadedInPods(s *starts.Starts) []starts.Application {
	var all []starts.Application
	for _, app := range rec.intents.Applications {
		payload := app.Newest.Payload()
		out := rec.decisions.Outcomes[payload.UID]
		if out == nil {
			continue
		}
		if out.Live == nil {
			// What waits for its chain is in the kernel still.
			if one, ok := s.Loaded(payload.UID); ok && (out.IsPending() || out.Unsettled) {
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
	out, i := rec.decisions.Outcomes[uid], rec.decisions.IndexOf(uid)
	wants := func(such func(plan.Attachment) bool) bool {
		return i >= 0 && slices.ContainsFunc(rec.decisions.Want.Applications[i].Attachments, such)
	}
	switch {
	case out == nil:
		return false
	case wants(func(at plan.Attachment) bool { return rec.lacksProbe(uid, at) }):
		return true
	case out.Tried:
		return false
	}
	return out.Unsettled || out.PutOff || out.Live == nil && out.IsPending() ||
		wants(func(at plan.Attachment) bool { return at.NetnsID == c.Pod.NetnsID && rec.lacksChain(uid, at) })
}

// lacksProbe reports whether a probe could not be put into a file, which other containers may share,
// since the one ended through which it was to be made. The next reconcile does it through another.
func (rec *reconcile) lacksProbe(uid string, at plan.Attachment) bool {
	through, ok := rec.seen.Pods.Snapshot.Container(at.Container)
	return ok && rec.loop.live.Links[uid][at.Key()] == nil && !through.IsRunning()
}

// lacksChain reports whether an XDP program is not in the chain of its device, and loads are on their
// way. One that waits after a failure is not coming.
func (rec *reconcile) lacksChain(uid string, at plan.Attachment) bool {
	c := rec.loop.live.Chains[at.Device()]
	return at.Hook == plan.XDP && rec.loadRound.HasAsked() && (c == nil || c.Version == nil || !slices.Contains(plan.UIDsOf(c.Version.Members), uid))
}
