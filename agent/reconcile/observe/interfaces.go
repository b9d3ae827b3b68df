package observe

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// running tells what runs where.
func (r *Round) running() targets.Running {
	now := targets.Running{UIDs: map[plan.Device][]string{}, Targets: map[plan.Device]plan.Target{}, On: r.runsOn, AsPrimary: r.asPrimary}
	for l := range r.open.Links() {
		if on := l.Attachment.Target.Device(); on.Index != 0 {
			now.UIDs[on], now.Targets[on] = append(now.UIDs[on], l.UID), l.Attachment.Target
		}
	}
	for on, c := range r.open.Chains() {
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
func (r *Round) runsOn(application v1alpha1.Identity, program, hook string) []plan.Device {
	var all []plan.Device
	for l := range r.open.Links() {
		is, on := l.Attachment, l.Attachment.Target.Device()
		if is.Application == application && is.Program == program && is.Hook == hook && on.Index != 0 && on.NetnsID != 0 {
			all = append(all, on)
		}
	}
	runs := func(m plan.Member) bool { return m.Identity == application && m.Program == program }
	for on := range r.open.Chains() {
		if hook == plan.XDP && on.NetnsID != 0 && slices.ContainsFunc(r.open.GivenTo(on), runs) {
			all = append(all, on)
		}
	}
	return all
}

// Interfaces reads the interfaces of the node.
func (r *Round) Interfaces(lookups *targets.Round) ([]plan.Interface, error) {
	return lookups.Look(r.node.opts.Namespaces(r.Pods), attachmentsOf(r.known), wantsPrimary(r.known), r.running())
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
func (r *Round) asPrimary(uid string, on plan.Interface) bool {
	app := r.byUID[uid]
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
