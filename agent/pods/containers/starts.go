package containers

import (
	"context"
	"errors"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/nri"
)

// Starts are asked about each container that is about to start. Their methods may be called from
// any goroutine.
type Starts interface {
	// Chooses reports whether the container is to wait for Attach. Name and Pod are what the
	// runtime announced, which nothing has confirmed: no processes, cgroups and networks. It must
	// not wait for anything, since the runtime starts no other container meanwhile.
	Chooses(c Container) bool
	// Attach returns when all that is to be in the container before it starts is there, and when
	// the context ends, which it does soon. The container is in the Snapshot.
	Attach(ctx context.Context, c Container)
	// Unseen is told of a container that was to wait, and of which the runtime did not answer in
	// time. Chooses may leave out others of its namespace, whose starts would wait in vain, too.
	Unseen(c Container)
}

// Announcer is a Source that may hear of containers before they start.
type Announcer interface {
	Source
	// AnnounceTo names who is asked. It is called once, before the first Snapshot.
	AnnounceTo(Starts)
}

// announcer implements Announcer.
type announcer struct {
	source
	starts Starts
}

// AnnounceTo implements Announcer.
func (a *announcer) AnnounceTo(s Starts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.starts = s
}

func (a *announcer) listener() Starts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.starts
}

// announce begins to hear of containers before they start, where the runtime has NRI and somebody
// asks. It goes on until the context ends, over any number of connections to NRI and CRI.
func (r *reader) announce(ctx context.Context) {
	if r.announced != nil || r.starts == nil {
		return
	}
	r.announced = new(sync.WaitGroup)
	r.announced.Go(func() {
		// A connection of its own: what CRI does not answer here holds up nothing else.
		conn, err := dialCRI(r.socket)
		if err != nil {
			r.opts.Log.Error("containers are not announced before they start", "error", err)
			return
		}
		defer func() { _ = conn.Close() }()
		l := &listener{looker: r.looker, starts: r.starts}
		l.client = cri.NewRuntimeServiceClient(conn)
		nri.Run(ctx, nri.Options{Socket: r.opts.NRI, Log: r.opts.Log, Starting: l.starting})
	})
}

// listener hears of containers that are about to start.
type listener struct {
	looker
	starts Starts
}

// starting holds a container up until what chooses it is attached, or time is up. The container's
// process is there and waits: its namespaces, cgroup and files are final.
func (l *listener) starting(ctx context.Context, q *api.StartContainerRequest) {
	c, err := announcedOf(q, l.kept)
	if err != nil {
		l.opts.Log.Debug("a container that starts is not held up", "error", err)
		return
	}
	if !l.starts.Chooses(c) {
		return
	}
	if err := l.confirm(ctx, c); err != nil {
		// The runtime may know before this process that the time is over.
		if errors.Is(ctx.Err(), context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
			l.starts.Unseen(c)
		}
		l.opts.Log.Info("a container that starts could not be looked at before; programs are attached in it soon after",
			"id", c.ID, "pod", c.Pod.Namespace+"/"+c.Pod.Name, "error", err)
		return
	}
	if seen, ok := l.state.container(c.ID); ok {
		l.starts.Attach(ctx, seen)
	}
}

// confirm reads a container that was announced from CRI and procfs, as any other one, so that it
// is in the next Snapshot. Of the announcement only the process's id counts, which CRI does not
// have yet.
func (l *listener) confirm(ctx context.Context, c Container) error {
	if _, known := l.state.pod(c.Pod.SandboxID); !known {
		if _, err := l.lookAtSandbox(ctx, c.Pod.SandboxID); err != nil {
			return err
		}
	}
	_, err := l.lookAtContainer(ctx, c.ID, c.Pod.SandboxID, c.PID)
	return err
}
