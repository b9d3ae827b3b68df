package observe

import (
	"slices"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// choices says what matters to the intents and to what is open. What runs without an intent
// may be in any pod.
func (r *Round) choices() *targets.Choices {
	choices := targets.NewChoices(r.node.opts.NamespaceLabels)
	for i := range r.known {
		app := &r.known[i]
		addChoices(choices, &app.Newest)
		if app.Deployed != nil {
			addChoices(choices, app.Deployed)
		}
		if before, ok := app.Newest.Before(); ok {
			addChoices(choices, &before)
		}
	}
	choices.Devices = choices.Devices || isOnDevices(r.open)
	choices.All = choices.All || r.open.IsInPods() && r.runsUnknown()
	return choices
}

// addChoices adds what matters to an intent.
func addChoices(choices *targets.Choices, o *intent.Opened) {
	payload := o.Payload()
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			choices.Add(payload.Application, at)
		}
	}
}

// isOnDevices reports whether a chain or a link is attached to an interface.
func isOnDevices(open *live.Open) bool {
	for range open.Chains() {
		return true
	}
	for l := range open.Links() {
		if l.Attachment.Ifindex != 0 {
			return true
		}
	}
	return false
}

// runsUnknown reports whether a program of an application that is not known is attached.
func (r *Round) runsUnknown() bool {
	isUnknown := func(uid string) bool { return r.byUID[uid] == nil }
	for on := range r.open.Chains() {
		if slices.ContainsFunc(plan.UIDsOf(r.open.GivenTo(on)), isUnknown) {
			return true
		}
	}
	for l := range r.open.Links() {
		if isUnknown(l.UID) {
			return true
		}
	}
	return false
}

// choosesPods reports whether an intent of an application chooses pods.
func choosesPods(app version.Known) bool {
	chooses := func(o *intent.Opened) bool {
		return o != nil && slices.ContainsFunc(o.Payload().Programs, func(p v1alpha1.Program) bool {
			return slices.ContainsFunc(p.Attach, func(at v1alpha1.Attachment) bool { return at.Pods != nil })
		})
	}
	return chooses(&app.Newest) || chooses(app.Deployed)
}
