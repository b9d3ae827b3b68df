package starts

import (
	"slices"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// Round is a reconcile that did what it could.
type Round struct {
	Decisions *decide.Decisions
	// Open is what is open, and Containers are those that the reconcile had.
	Open       *live.Open
	Containers *containers.Snapshot
	Loads      *build.Round
}

// Finish tells the containers that wait to start what is attached. In nil Starts none waits.
func (s *Starts) Finish(r Round) {
	if s != nil {
		s.reconciled(r.loadedInPods(s), r.Containers, r.isComing)
	}
}

// loadedInPods are the applications that choose pods and are in the kernel.
func (r Round) loadedInPods(s *Starts) []application {
	var all []application
	for _, app := range r.Decisions.Applications {
		payload := app.Newest.Payload()
		out := r.Decisions.Outcomes[payload.UID]
		if out == nil {
			continue
		}
		runs := out.Version()
		if runs == nil {
			// What waits for its chain is in the kernel still.
			if one, ok := s.lastLoaded(payload.UID); ok && (out.IsPending() || out.HasLeft(report.Answer{})) {
				all = append(all, one)
			}
			continue
		}
		if one := inPods(runs.Payload()); len(one.Attachments) > 0 {
			all = append(all, one)
		}
	}
	return all
}

// isComing reports whether something of an application is to be attached in a container and is not
// yet, though nothing failed.
func (r Round) isComing(uid string, c containers.Container) bool {
	out, i := r.Decisions.Outcomes[uid], r.Decisions.IndexOf(uid)
	wants := func(such func(plan.Attachment) bool) bool {
		return i >= 0 && slices.ContainsFunc(r.Decisions.Want.Applications[i].Attachments, such)
	}
	switch {
	case out == nil, r.Decisions.IsGone(uid):
		// Of one that ends, only the kernel's answer is on its way.
		return false
	case wants(func(at plan.Attachment) bool { return r.lacksProbe(uid, at) }):
		return true
	case out.HasLeft(report.Retry{}):
		return false
	}
	return out.IsComing() || wants(func(at plan.Attachment) bool { return at.NetnsID == c.Pod.NetnsID && r.lacksChain(uid, at) })
}

// lacksProbe reports whether a probe could not be put into a file, which other containers may share,
// since the one ended through which it was to be made. The next reconcile does it through another.
func (r Round) lacksProbe(uid string, at plan.Attachment) bool {
	through, ok := r.Containers.Container(at.Container)
	return ok && r.Open.Link(uid, at.Key()) == nil && !through.IsRunning()
}

// lacksChain reports whether an XDP program is not in the chain of its device, and loads are on their
// way. One that waits after a failure is not coming.
func (r Round) lacksChain(uid string, at plan.Attachment) bool {
	return at.Hook == plan.XDP && r.Loads.HasAsked() && !slices.Contains(plan.UIDsOf(r.Open.GivenTo(at.Device())), uid)
}
