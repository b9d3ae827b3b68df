// Package starts has containers wait before they start, until the programs that choose them are
// attached.
//
// The runtime holds up the whole node meanwhile, so containers wait for what takes a moment: for
// programs that are in the kernel, and never for an object or for the verifier of a version. A
// tenant that is late is not waited for any more for a while, which grows while it stays late. The
// package attaches nothing: it waits for reconciles; see Round.
package starts

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// firstPause is how long no container waits for a tenant that was late, doubled each time up to
// longestPause until it is in time.
const firstPause, longestPause = 5 * time.Second, time.Minute

// respite is how long no container waits for programs of any namespace where those of one were late,
// and for none at all where the agent itself was: as long as a container waits at most, so that a
// node starts containers half of the time at least, however many are late in turn.
const respite = time.Second

// Options are what Starts is told once. All are required but NamespaceLabels.
type Options struct {
	// Log is where those that were late are written.
	Log *slog.Logger
	// Clock tells the time.
	Clock func() time.Time
	// NamespaceLabels returns the labels of a namespace of the cluster. Nil means that there are no
	// namespaces.
	NamespaceLabels targets.NamespaceLabels
	// Wake asks for a reconcile at once, which reads the containers. It must not wait.
	Wake func()
}

// Starts are the containers that wait to start. It implements containers.Starts.
type Starts struct {
	opts Options
	mu   sync.Mutex
	// loaded are the applications that choose pods and are in the kernel.
	loaded []application
	// waiting are those that wait, by the container's id.
	waiting map[string]*start
	// late are the tenants that were late when last waited for.
	late map[tenant]pause
	// unseen are the namespaces of pods of which the runtime did not answer in time.
	unseen map[string]pause
}

// pause is a time in which no container waits for a tenant.
type pause struct {
	until time.Time
	long  time.Duration
}

// next is the pause that follows one.
func (p pause) next(now time.Time) pause {
	long := min(max(firstPause, 2*p.long), longestPause)
	return pause{now.Add(long), long}
}

// isOver reports whether a pause ended as long ago as it took. Until then who was late is known for
// that, where it still is.
func (p pause) isOver(now time.Time) bool { return !now.Before(p.until.Add(p.long)) }

// application is one that chooses pods, and is in the kernel.
type application struct {
	UID      string
	Identity v1alpha1.Identity
	// Attachments are those with pods.
	Attachments []v1alpha1.Attachment
}

// inPods is what an intent attaches in pods.
func inPods(p intent.Payload) application {
	a := application{UID: p.UID, Identity: p.Application}
	for _, program := range p.Programs {
		for _, at := range program.Attach {
			if at.Pods != nil {
				a.Attachments = append(a.Attachments, at)
			}
		}
	}
	return a
}

// tenant is whom a late application is held against: its namespace or, of the cluster's, it
// itself.
type tenant struct{ namespace, name string }

// theAgent is the tenant that stands for the agent itself, and namespaces the one that stands for all
// namespaces. No name of Kubernetes is a star.
var theAgent, namespaces = tenant{}, tenant{namespace: "*"}

func tenantOf(i v1alpha1.Identity) tenant {
	if i.Namespace != "" {
		return tenant{namespace: i.Namespace}
	}
	return tenant{name: i.Name}
}

// start is a container that waits.
type start struct {
	// awaited are the applications that are not yet attached, by UID.
	awaited map[string]v1alpha1.Identity
	// seen reports that a reconcile had the container.
	seen bool
	done chan struct{}
}

// New returns Starts that know no application yet.
func New(o Options) *Starts {
	return &Starts{opts: o, waiting: map[string]*start{}, late: map[tenant]pause{}, unseen: map[string]pause{}}
}

// Chooses implements containers.Starts.
func (s *Starts) Chooses(c containers.Container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.opts.Clock().Before(s.unseen[c.Pod.Namespace].until) && len(s.awaitedBy(c)) > 0
}

// Unseen implements containers.Starts. It is held against the pod's namespace, whosever programs the
// container waited for: that may be the one that has the runtime hang.
func (s *Starts) Unseen(c containers.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Clock()
	maps.DeleteFunc(s.unseen, func(_ string, p pause) bool { return p.isOver(now) })
	next := s.unseen[c.Pod.Namespace].next(now)
	s.unseen[c.Pod.Namespace] = next
	s.opts.Log.Warn("a container started before the runtime told of it; no container of its namespace waits for programs meanwhile",
		"pod", c.Pod.Namespace+"/"+c.Pod.Name, "container", c.Name, "for", next.long)
}

// awaitedBy are the applications that the container is to wait for. The caller holds mu.
func (s *Starts) awaitedBy(c containers.Container) map[string]v1alpha1.Identity {
	if s.isLate(theAgent) {
		return nil
	}
	pods := targets.Pods{Snapshot: containers.NewSnapshot([]containers.Container{c}), NamespaceLabels: s.opts.NamespaceLabels}
	awaited := map[string]v1alpha1.Identity{}
	for _, one := range s.loaded {
		chooses := func(at v1alpha1.Attachment) bool { return pods.Chooses(one.Identity, at) }
		if slices.ContainsFunc(one.Attachments, chooses) && !s.isLate(tenantOf(one.Identity)) {
			awaited[one.UID] = one.Identity
		}
	}
	return awaited
}

// isLate reports whether a tenant is not waited for. The caller holds mu.
func (s *Starts) isLate(t tenant) bool {
	now := s.opts.Clock()
	return now.Before(s.late[t].until) || t.namespace != "" && now.Before(s.late[namespaces].until)
}

// Attach implements containers.Starts.
func (s *Starts) Attach(ctx context.Context, c containers.Container) {
	s.mu.Lock()
	delete(s.unseen, c.Pod.Namespace)
	one := &start{awaited: s.awaitedBy(c), done: make(chan struct{})}
	if len(one.awaited) == 0 {
		s.mu.Unlock()
		return
	}
	s.waiting[c.ID] = one
	asked := maps.Clone(one.awaited)
	s.mu.Unlock()
	s.opts.Wake()
	select {
	case <-one.done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, c.ID)
	if len(one.awaited) == 0 {
		for _, application := range asked {
			delete(s.late, tenantOf(application))
		}
	} else if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.noteLate(one, c)
	}
}

// IsWaiting reports whether a container waits that no reconcile had yet: it waits for one that is under way, or for the next. In
// nil Starts none does.
func (s *Starts) IsWaiting() bool { return s.IsWaitingBeside(nil) }

// IsWaitingBeside is IsWaiting without the containers that a reconcile under way has.
func (s *Starts) IsWaitingBeside(had *containers.Snapshot) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, one := range s.waiting {
		if !one.seen && !had.Has(id) {
			return true
		}
	}
	return false
}

// noteLate notes whom a container waited for in vain. The caller holds mu.
func (s *Starts) noteLate(one *start, c containers.Container) {
	now := s.opts.Clock()
	maps.DeleteFunc(s.late, func(_ tenant, p pause) bool { return p.isOver(now) })
	log := s.opts.Log.With("pod", c.Pod.Namespace+"/"+c.Pod.Name, "container", c.Name)
	short := pause{now.Add(respite), respite}
	if !one.seen {
		s.late[theAgent] = short
		log.Warn("a container started before its programs were attached, since the agent is busy; no container waits for programs meanwhile", "for", respite)
		return
	}
	paused := map[tenant]bool{}
	for _, application := range one.awaited {
		t := tenantOf(application)
		if t.namespace != "" {
			s.late[namespaces] = short
		}
		if !paused[t] {
			paused[t] = true
			s.late[t] = s.late[t].next(now)
		}
		log.Warn("a container started before a program was attached, which takes long; no container waits for programs of that tenant meanwhile",
			"application", application.String(), "for", s.late[t].long)
	}
}

// reconciled notes what is loaded after a reconcile that had these containers, and lets those start
// for which nothing is coming. isComing reports whether something of an application is to be attached
// in a container and is not yet, though nothing failed.
func (s *Starts) reconciled(loaded []application, had *containers.Snapshot, isComing func(uid string, c containers.Container) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = loaded
	for id, one := range s.waiting {
		if had == nil || len(one.awaited) == 0 {
			continue
		}
		c, ok := had.Container(id)
		if !ok {
			continue
		}
		one.seen = true
		maps.DeleteFunc(one.awaited, func(uid string, _ v1alpha1.Identity) bool { return !isComing(uid, c) })
		if len(one.awaited) == 0 {
			close(one.done)
		}
	}
}

// lastLoaded returns the application that was loaded at the last reconcile.
func (s *Starts) lastLoaded(uid string) (application, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.loaded, func(a application) bool { return a.UID == uid })
	if i < 0 {
		return application{}, false
	}
	return s.loaded[i], true
}
