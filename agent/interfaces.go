package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/agent/targets"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// running tells what runs where.
func (rec *reconcile) running() targets.Running {
	now := targets.Running{UIDs: map[int][]string{}, AsPrimary: rec.asPrimary}
	for uid, links := range rec.loop.live.Links {
		for _, l := range links {
			if index := l.Attachment.Ifindex; index != 0 {
				now.UIDs[index] = append(now.UIDs[index], uid)
			}
		}
	}
	for index, c := range rec.loop.live.Chains {
		if c.Version != nil {
			now.UIDs[index] = append(now.UIDs[index], plan.UIDsOf(c.Version.Members)...)
		} else if now.UIDs[index] == nil {
			now.UIDs[index] = []string{}
		}
	}
	return now
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
func wantsPrimary(apps []*application) bool {
	return slices.ContainsFunc(apps, func(app *application) bool {
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
