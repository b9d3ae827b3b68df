// Package accepted owns the sealed intents that a node accepted and what became of their applications: in memory
// behind one lock, and on disk. It must not touch the kernel, and evaluates no intent beyond its seal, its serial and its node.
package accepted

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Application is one application and what became of it. A Store has the one, and a Round
// has a copy, until Finish replaces the one by it.
type Application struct {
	decide.Application
	// envelope is the newest intent as it was sealed, and unkept tells that it
	// is worked on and not on disk.
	envelope intent.Envelope
	unkept   bool
	// Exports reports that the newest intent grants maps to readers outside of programs.
	Exports bool
	// Loaded are the revisions that were in the kernel after the last reconcile.
	Loaded []string
	// Exhausted reports that the tombstone is complete: nothing of its application is left on the node.
	Exhausted bool
	// Conflict says that another intent was sent under the newest one's serial, and
	// nothing since that settles which of them holds.
	Conflict error
	// Logged is what was logged last of what became of it.
	Logged Logged
}

// Logged is a state and the serial of the version that it is about.
type Logged struct {
	State  v1alpha1.NodeState
	Serial int64
}

// newApplication returns an application whose newest intent is o.
func newApplication(o intent.Opened, e intent.Envelope) *Application {
	isExported := func(m v1alpha1.Map) bool { return len(m.Export) > 0 }
	return &Application{Application: decide.Application{Known: version.Known{Newest: o}}, envelope: e,
		Exports: slices.ContainsFunc(slices.Collect(maps.Values(o.Payload().Maps)), isExported)}
}

// inherit takes over what was found out about the application while an older
// intent of its was the newest.
func (app *Application) inherit(old *Application) {
	app.Deployed, app.Checked, app.Lacks, app.Maps, app.Status = old.Deployed, old.Checked, old.Lacks, old.Maps, old.Status
	app.Loaded, app.FailedBefore, app.Logged = old.Loaded, old.FailedBefore, old.Logged
}

// Options are what a Store is told once. All are required but Node and Labels.
type Options struct {
	Log *slog.Logger
	Dir *statedir.Dir
	// Node is the node's name; empty where there are no rollouts.
	Node string
	// Labels are the node's; nil means that every intent is for this node.
	Labels map[string]string
	// Trust are the keys whose seals count.
	Trust *intent.Trust
	// Wake asks for a reconcile. It must not wait.
	Wake func()
}

// Store holds the accepted intents. Reconciles work on copies; see Begin.
type Store struct {
	opts Options
	// intake is held while intents are accepted that one reconcile is to see together.
	intake sync.Mutex
	// mu guards what follows.
	mu      sync.Mutex
	apps    map[string]*Application
	orphans []report.ApplicationStatus
	shares  map[string]v1alpha1.NamespaceShare
	// settled is closed while every intent was worked on once.
	settled chan struct{}
	labels  map[string]string
	trust   *intent.Trust
	// arrived: an intent was accepted, or a label changed, that no reconcile had yet.
	arrived bool
}

// Open returns a Store with the intents that are kept on disk.
func Open(o Options) (*Store, error) {
	s := &Store{opts: o, apps: map[string]*Application{}, settled: make(chan struct{}), labels: maps.Clone(o.Labels), trust: o.Trust}
	return s, s.restore()
}

// restore reads what is cached. An envelope whose seal does not hold any more
// is left where it is and reported: what runs by it is kept. So is one that
// bears another application's name, since it replaces nothing there.
func (s *Store) restore() error {
	all, err := s.opts.Dir.Intents()
	if err != nil {
		return err
	}
	for _, k := range all {
		o, err := s.trusted().Open(k.Envelope)
		if err != nil {
			s.opts.Log.Error("kept intent does not open; what runs by it is kept", "path", k.Path, "error", err)
			continue
		}
		o = o.For(s.opts.Node)
		uid := o.Payload().UID
		if !k.IsNamedFor(uid) {
			s.opts.Log.Error("kept intent is another application's than its file's name says; it is passed over",
				"application", o.Payload().Application.String(), "path", k.Path)
			continue
		}
		app := s.apps[uid]
		if app == nil {
			app = newApplication(o, k.Envelope)
			s.apps[uid] = app
		}
		if k.Kind == statedir.Deployed {
			app.Deployed = &o
		}
		if o.Payload().Serial > app.Newest.Payload().Serial {
			deployed := app.Deployed
			app = newApplication(o, k.Envelope)
			app.Deployed, s.apps[uid] = deployed, app
		}
	}
	return nil
}

// Intents returns the newest accepted intent of every application, tombstones
// included, ordered by UID.
func (s *Store) Intents() []intent.Opened {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]intent.Opened, 0, len(s.apps))
	for _, app := range s.apps {
		all = append(all, app.Newest)
	}
	slices.SortFunc(all, func(x, y intent.Opened) int { return strings.Compare(x.Payload().UID, y.Payload().UID) })
	return all
}

// Forget drops the tombstones that were worked off and left nothing, but for
// those that somebody has still. There tells of a UID whether the application
// has an intent where intents come from, which is to know all of them: an older
// one that came back from there would be as good as new.
func (s *Store) Forget(there func(uid string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, app := range s.apps {
		if !app.Exhausted || there(uid) {
			continue
		}
		if err := s.opts.Dir.DropIntent(uid, statedir.Newest); err != nil {
			s.opts.Log.Error("forget a tombstone", "application", app.Newest.Payload().Application.String(), "error", err)
			continue
		}
		delete(s.apps, uid)
	}
}

// Relabel gives the agent the labels that the node has now. The loop then decides
// anew for whom the node was chosen: what no longer selects it is unloaded, and
// what does is loaded. Nil means, as in Options, that every intent is for this
// node.
func (s *Store) Relabel(labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version.SameLabels(s.labels, labels) {
		return
	}
	s.labels = maps.Clone(labels)
	s.unsettle()
	s.opts.Wake()
}

// Retrust replaces the keys whose seals count. What was accepted before stays;
// an envelope that was rejected counts when it is sent again.
func (s *Store) Retrust(t *intent.Trust) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust = t
}

// trusted are the keys that count now.
func (s *Store) trusted() *intent.Trust {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trust
}

// unsettle makes Settled wait again, and hurries the reconcile under way. The caller holds mu.
func (s *Store) unsettle() {
	s.arrived = true
	select {
	case <-s.settled:
		s.settled = make(chan struct{})
	default:
	}
}
