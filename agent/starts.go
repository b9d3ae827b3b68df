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
	if out == nil {
		return false
	}
	if rec.wants(uid, rec.lacksProbe) {
		return true
	}
	return !out.Tried && (out.Unsettled || out.PutOff || out.Live == nil && out.Pending || rec.wants(uid, func(at plan.Attachment) bool {
		return at.Hook == plan.XDP && at.NetnsID == c.Pod.NetnsID && rec.lacksChain(uid, at)
	}))
}

// wants reports whether an application is to have such an attachment.
func (rec *reconcile) wants(uid string, such func(plan.Attachment) bool) bool {
	i := rec.decisions.IndexOf(uid)
	return i >= 0 && slices.ContainsFunc(rec.decisions.Want.Applications[i].Attachments, such)
}

// lacksProbe reports whether a probe was to be put into a file, which other containers may share,
// through one that ended meanwhile. The next reconcile does it through another.
func (rec *reconcile) lacksProbe(at plan.Attachment) bool {
	if at.Container == "" || rec.pods.Snapshot == nil {
		return false
	}
	through, ok := rec.pods.Snapshot.Container(at.Container)
	return ok && !through.IsRunning()
}

// lacksChain reports whether an application's XDP program is not in the chain of a device, and loads
// are on their way. One that waits after a failure is not coming.
func (rec *reconcile) lacksChain(uid string, at plan.Attachment) bool {
	if !rec.loadRound.HasAsked() {
		return false
	}
	c := rec.loop.live.Chains[at.Device()]
	return c == nil || c.Version == nil || !slices.Contains(plan.UIDsOf(c.Version.Members), uid)
}
