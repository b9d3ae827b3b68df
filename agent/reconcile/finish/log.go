package finish

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// maxReason bounds a reason in the log, in characters: the status has all of it.
const maxReason = 1024

// unloaded is the word for both states in which nothing of an application is left.
const unloaded = "unloaded"

// logState logs a state of an application that is new, or is about another version: a load that is
// tried again changes nothing. before is the last status. The keys are those of the controller's log.
func (r *Round) logState(app *accepted.Application, before report.ApplicationStatus) {
	s, payload := app.Status, app.Newest.Payload()
	state, why := s.NodeState()
	now, word := accepted.Logged{State: state, Serial: cmp.Or(s.Version, payload.Serial)}, strings.ToLower(string(state))
	switch state {
	case v1alpha1.NodePending, v1alpha1.NodeRetained:
		return
	case v1alpha1.NodeRemoved:
		if before.UID == "" {
			// Nothing of it was here.
			return
		}
		word, why = unloaded, payload.Reason
	case v1alpha1.NodeNotSelected:
		if app.Logged.State == "" {
			return
		}
		word, why = unloaded, deployedMessage(s)
	case v1alpha1.NodeLoaded, v1alpha1.NodeWaiting, v1alpha1.NodeFailed, v1alpha1.NodeUnsupported:
		why = cmp.Or(why, deployedMessage(s))
	}
	if now == app.Logged {
		return
	}
	app.Logged = now
	r.Log.Info("application "+word, "application", s.Application.String(), "serial", now.Serial, "digest", s.Digest, "revision", s.Revision,
		"node", r.Node, "reason", text.CutRunes(why, maxReason))
}

// deployedMessage is the message of the condition Deployed.
func deployedMessage(s report.ApplicationStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDeployed); c != nil {
		return c.Message
	}
	return ""
}
