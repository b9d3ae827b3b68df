package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// choicesOf says what matters to applications and to what is open. What runs without an intent
// may be in any pod.
func (e *env) choicesOf(known []version.Known, open *live.Set) *targets.Choices {
	uids := map[string]bool{}
	choices := targets.NewChoices(e.opts.NamespaceLabels)
	for i := range known {
		app := &known[i]
		uids[app.Newest.Payload().UID] = true
		addChoices(choices, &app.Newest)
		if app.Deployed != nil {
			addChoices(choices, app.Deployed)
		}
		if before, ok := app.Newest.Before(); ok {
			addChoices(choices, &before)
		}
	}
	choices.Devices = choices.Devices || isOnDevices(open)
	choices.All = choices.All || open.IsInPods() && runsUnknown(open, uids)
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
func isOnDevices(open *live.Set) bool {
	if len(open.Chains) > 0 {
		return true
	}
	for _, links := range open.Links {
		for _, l := range links {
			if l.Attachment.Ifindex != 0 {
				return true
			}
		}
	}
	return false
}

// runsUnknown reports whether a program of an application that is not known is attached.
func runsUnknown(open *live.Set, known map[string]bool) bool {
	isUnknown := func(uid string) bool { return !known[uid] }
	for _, chain := range open.Chains {
		if chain.Version != nil && slices.ContainsFunc(plan.UIDsOf(chain.Version.Members), isUnknown) {
			return true
		}
	}
	for uid := range open.Links {
		if isUnknown(uid) {
			return true
		}
	}
	return false
}

// takePods returns the pods for a reconcile, which is full or has the pods before it.
func (a *Agent) takePods(known []version.Known, full bool) targets.Pods {
	// In this order: a change that the former choices did not match is in the Snapshot.
	choices := a.choicesOf(known, a.loop.live)
	a.changes.Choose(choices)
	if keeper, ok := a.containers.(containers.Keeper); ok {
		keeper.Keep(choices.Keys())
	}
	pods := a.podsNow(known, a.loop.live)
	if !full {
		pods.Before = a.loop.pods
	}
	return pods
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
