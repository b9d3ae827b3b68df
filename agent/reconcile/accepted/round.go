package accepted

import (
	"cmp"
	"errors"
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// Round is what one reconcile has of a Store. Nothing is written back before Finish.
type Round struct {
	// Applications are copies, until Finish hands them over; ordered by name.
	Applications []*Application
	// Labels are those that the node had when the reconcile began.
	Labels map[string]string

	store *Store
	// replaced reports that cached objects may have lost their last intent.
	replaced bool
}

// Begin copies what Accept and Relabel may change meanwhile.
func (s *Store) Begin() *Round {
	s.intake.Lock()
	defer s.intake.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = false
	apps := make([]*Application, 0, len(s.apps))
	for _, app := range s.apps {
		one := *app
		apps = append(apps, &one)
	}
	slices.SortFunc(apps, func(x, y *Application) int {
		p, q := x.Newest.Payload(), y.Newest.Payload()
		return cmp.Or(cmp.Compare(p.Application.String(), q.Application.String()), cmp.Compare(p.UID, q.UID))
	})
	return &Round{Applications: apps, Labels: s.labels, store: s}
}

// States are the applications as the parts of a reconcile see them.
func (r *Round) States() []*decide.Application {
	all := make([]*decide.Application, len(r.Applications))
	for i, app := range r.Applications {
		all[i] = &app.Application
	}
	return all
}

// Known are the intents of the applications.
func (r *Round) Known() []version.Known {
	all := make([]version.Known, len(r.Applications))
	for i, app := range r.Applications {
		all[i] = app.Known
	}
	return all
}

// Known are the intents of the applications, for a reader: unlike Begin, no reconcile has them by it.
func (s *Store) Known() []version.Known {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]version.Known, 0, len(s.apps))
	for _, app := range s.apps {
		all = append(all, app.Known)
	}
	return all
}

// HasArrived reports whether an intent waits for the next reconcile.
func (r *Round) HasArrived() bool {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.store.arrived
}

// HasUnkept reports whether an intent is worked on and not on disk. The applications of a Round that is finished are
// the Store's, which Accept changes.
func (r *Round) HasUnkept() bool {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return slices.ContainsFunc(r.Applications, func(app *Application) bool { return app.unkept })
}

// NameOf returns an application's name for the log, or its UID where no intent of it is
// known.
func (r *Round) NameOf(uid string) string {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if app := r.store.apps[uid]; app != nil {
		return app.Newest.Payload().Application.String()
	}
	return uid
}

// Findings are what a reconcile found out beside the applications that it changed.
type Findings struct {
	// Outcomes by UID.
	Outcomes map[string]*report.Outcome
	// Orphans are the applications whose intent this node does not have, and Shares what namespaces have at targets that tasks of
	// others run, too. They count where the kernel was Observed.
	Orphans  []report.ApplicationStatus
	Shares   map[string]v1alpha1.NamespaceShare
	Observed bool
	// Unsettled reports that something beside the outcomes is on its way.
	Unsettled bool
}

// Finish hands the applications over, and wakes who waits in Settled.
func (r *Round) Finish(found Findings) {
	s := r.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if found.Observed {
		s.orphans, s.shares = found.Orphans, found.Shares
	}
	all := version.SameLabels(r.Labels, s.labels) && !found.Unsettled
	for _, app := range r.Applications {
		uid := app.Newest.Payload().UID
		now := s.apps[uid]
		if now == nil {
			// Forgotten meanwhile.
			continue
		}
		if now.Newest.Payload().Serial != app.Newest.Payload().Serial {
			// Overtaken meanwhile. What now runs is what the newer one falls back to.
			now.inherit(app)
			all = false
			continue
		}
		app.unkept, app.envelope = now.unkept, now.envelope
		if !errors.Is(app.Conflict, now.Conflict) {
			// The next reconcile reports it.
			app.Conflict, all = now.Conflict, false
		}
		s.apps[uid] = app
		if out := found.Outcomes[uid]; out == nil || !out.IsSettled() {
			all = false
		}
	}
	if all && len(r.Applications) == len(s.apps) {
		select {
		case <-s.settled:
		default:
			close(s.settled)
		}
	}
}

// KeepDeployed remembers that an application's newest intent runs in whole.
func (r *Round) KeepDeployed(app *Application) error {
	if err := r.store.opts.Dir.PutIntent(app.Newest.Payload().UID, statedir.Deployed, app.envelope); err != nil {
		return err
	}
	o := app.Newest
	app.Deployed, r.replaced = &o, true
	return nil
}

// DropDeployed forgets the intent that ran in whole last.
func (r *Round) DropDeployed(app *Application) error {
	if err := r.store.opts.Dir.DropIntent(app.Newest.Payload().UID, statedir.Deployed); err != nil {
		return err
	}
	app.Deployed, r.replaced = nil, true
	return nil
}

// Prune drops the cached objects of intents that were replaced.
func (r *Round) Prune(cache *objects.Cache) error {
	if !r.replaced {
		return nil
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	used := map[string]bool{}
	for _, app := range r.store.apps {
		used[app.Newest.Payload().ObjectDigest] = true
	}
	for _, app := range r.Applications {
		payload := app.Newest.Payload()
		for _, version := range payload.Versions() {
			used[version.ObjectDigest] = true
		}
		if app.Deployed != nil {
			used[app.Deployed.Payload().ObjectDigest] = true
		}
	}
	return cache.Prune(used)
}
