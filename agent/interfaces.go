package agent

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// running tells what runs where.
func (rec *reconcile) running() targets.Running {
	now := targets.Running{UIDs: map[plan.Device][]string{}, Targets: map[plan.Device]plan.Target{}, On: rec.runsOn, AsPrimary: rec.asPrimary}
	for uid, links := range rec.loop.live.Links {
		for _, l := range links {
			if on := l.Attachment.Target.Device(); on.Index != 0 {
				now.UIDs[on], now.Targets[on] = append(now.UIDs[on], uid), l.Attachment.Target
			}
		}
	}
	for on, c := range rec.loop.live.Chains {
		now.Targets[on] = cmp.Or(c.Target, now.Targets[on])
		if c.Version != nil {
			now.UIDs[on] = append(now.UIDs[on], plan.UIDsOf(c.Version.Members)...)
		} else if now.UIDs[on] == nil {
			now.UIDs[on] = []string{}
		}
	}
	return now
}

// runsOn returns the devices outside the agent's own network namespace where a program of an
// application runs on a hook.
func (rec *reconcile) runsOn(application v1alpha1.Identity, program, hook string) []plan.Device {
	var all []plan.Device
	for _, links := range rec.loop.live.Links {
		for _, l := range links {
			is, on := l.Attachment, l.Attachment.Target.Device()
			if is.Application == application && is.Program == program && is.Hook == hook && on.Index != 0 && on.NetnsID != 0 {
				all = append(all, on)
			}
		}
	}
	for on, c := range rec.loop.live.Chains {
		if hook != plan.XDP || on.NetnsID == 0 || c.Version == nil {
			continue
		}
		if slices.ContainsFunc(c.Version.Members, func(m plan.Member) bool { return m.Identity == application && m.Program == program }) {
			all = append(all, on)
		}
	}
	return all
}

// lookForDevices reads the interfaces of the node.
func (rec *reconcile) lookForDevices() ([]plan.Interface, error) {
	return rec.lookupRound.Look(rec.env.namespacesOf(rec.pods), attachmentsOf(rec.intents.Known()), wantsPrimary(rec.intents.Known()), rec.running())
}

// namespacesOf are the network namespaces of pods.
func (e *env) namespacesOf(pods targets.Pods) targets.Namespaces {
	if e.namespaces != nil {
		return e.namespaces()
	}
	return pods.Namespaces()
}

// podsNow are the pods of the node, if an intent chooses some, or something of Skep's is in one.
func (e *env) podsNow(known []version.Known, open *live.Set) targets.Pods {
	pods := targets.Pods{NamespaceLabels: e.opts.NamespaceLabels}
	if e.containers == nil || !slices.ContainsFunc(known, choosesPods) && !open.IsInPods() {
		return pods
	}
	var away *containers.AwayError
	pods.Snapshot, pods.Err = e.containers.Snapshot()
	if errors.As(pods.Err, &away) && pods.Snapshot.IsWhole() {
		// What it knows is true all the same.
		e.opts.Log.Debug("the container runtime does not answer; its containers are those that it named last", "error", pods.Err)
		pods.Err = nil
	}
	return pods
}

// attachmentsOf are what the applications' intents attach to interfaces.
func attachmentsOf(known []version.Known) []targets.Asked {
	var all []targets.Asked
	add := func(o *intent.Opened) {
		payload := o.Payload()
		for _, program := range payload.Programs {
			for _, at := range program.Attach {
				if at.Interfaces != nil {
					all = append(all, targets.Asked{Application: payload.Application, At: at})
				}
			}
		}
	}
	for i := range known {
		app := &known[i]
		add(&app.Newest)
		if app.Deployed != nil {
			add(app.Deployed)
		}
	}
	return all
}

// asPrimary looks at what the application's intents choose by name.
func (rec *reconcile) asPrimary(uid string, on plan.Interface) bool {
	app := rec.decisions.Application(uid)
	return app != nil && slices.ContainsFunc(append(selections(&app.Newest), selections(app.Deployed)...), func(s v1alpha1.Interfaces) bool {
		byName, err := plan.Select(&v1alpha1.Interfaces{Names: s.Names}, []plan.Interface{on})
		return s.Primary && (err != nil || len(byName) == 0)
	})
}

// wantsPrimary reports whether an intent chooses the primary interface.
func wantsPrimary(known []version.Known) bool {
	return slices.ContainsFunc(known, func(app version.Known) bool {
		return slices.ContainsFunc(append(selections(&app.Newest), selections(app.Deployed)...),
			func(s v1alpha1.Interfaces) bool { return s.Primary })
	})
}

// selections are what an intent says of interfaces; an intent that there is not
// says nothing.
func selections(o *intent.Opened) []v1alpha1.Interfaces {
	if o == nil {
		return nil
	}
	var all []v1alpha1.Interfaces
	for _, program := range o.Payload().Programs {
		for _, at := range program.Attach {
			if at.Interfaces != nil {
				all = append(all, *at.Interfaces)
			}
		}
	}
	return all
}

// skippedContainers are the containers that the last Snapshot left out, by id, with why.
type skippedContainers map[string]string

// tell logs each once.
func (s *skippedContainers) tell(seen *containers.Snapshot, log *slog.Logger) {
	now := skippedContainers{}
	if seen != nil {
		for _, one := range seen.Skipped() {
			now[one.ID] = string(one.Reason)
			if (*s)[one.ID] != now[one.ID] {
				log.Info("a container is left out: no program is attached in it", "id", one.ID, "pod", one.Pod.Namespace+"/"+one.Pod.Name, "reason", one.Reason, "error",
					one.Err)
			}
		}
	}
	*s = now
}
