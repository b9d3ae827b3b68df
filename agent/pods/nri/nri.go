// Package nri is a plug-in of the container runtime's Node Resource Interface that changes nothing.
//
// The runtime tells it about each container before that starts, and waits for its answer. The
// package speaks NRI's protocol and keeps the connection. It looks at no container, and believes
// nothing that it is told. NRI's own stub is not used, since it waits for ever for a runtime that
// goes away between registration and configuration.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
)

// The name and the index by which the runtime knows the plug-in. Those of lower indices, which
// change what a container is, come first. The runtime takes several of the same name and index,
// as while an agent replaces another.
const (
	pluginName  = "skep"
	pluginIndex = "90"
)

// The bounds of NRI. The runtime has one plug-in answer about one container at a time, so a
// container that is held up holds up the others of the node, too.
const (
	// LongestHold is how long a start waits at most, and a start waits no longer than a part of
	// the runtime's own limit either: half of it, which is two seconds by default.
	LongestHold = time.Second
	partOfLimit = 2
	// registration bounds connecting and registering.
	registration = 5 * time.Second
	// firstNRI and longestNRI are the waits between attempts. A connection that lasted for
	// longestNRI begins anew with the first.
	firstNRI, longestNRI = time.Second, 30 * time.Second
)

// Options are what a plug-in is told once. All are required.
type Options struct {
	// Socket is the runtime's for plug-ins, an absolute path.
	Socket string
	// Log is where it is written whether the runtime announces containers.
	Log *slog.Logger
	// Starting is called from any goroutine with each container that is about to start, which it
	// does when Starting returns, or when the context ends.
	Starting func(context.Context, *api.StartContainerRequest)
}

// Run holds a plug-in registered until the context ends, over any number of connections. It returns
// when all calls of Starting have.
func Run(ctx context.Context, o Options) {
	p := &plugin{opts: o, log: o.Log.With("socket", o.Socket)}
	p.hold.Store(int64(LongestHold))
	p.run(ctx)
}

// plugin is the plug-in.
type plugin struct {
	opts Options
	log  *slog.Logger
	// hold is how long a start waits at most, a time.Duration.
	hold atomic.Int64
}

// run connects until the context ends.
func (p *plugin) run(ctx context.Context) {
	for wait, told := firstNRI, false; ctx.Err() == nil; wait = min(2*wait, longestNRI) {
		began := time.Now()
		registered, err := p.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if registered || !told {
			told = true
			level := slog.LevelInfo
			if errors.Is(err, fs.ErrNotExist) {
				level = slog.LevelDebug
			}
			p.log.Log(ctx, level, "the container runtime does not announce containers before they start (NRI); programs are attached soon after", "error", err)
		}
		if time.Since(began) > longestNRI {
			wait = firstNRI
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// errClosed is the error of a connection that the runtime closed: it ended, or took too long for
// an answer to be in time.
var errClosed = errors.New("the runtime closed the connection")

// session is the plug-in over one connection. It returns when that ends, or the context, and when
// all that it was asked is answered.
func (p *plugin) session(ctx context.Context) (registered bool, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	trunk, err := (&net.Dialer{Timeout: registration}).DialContext(ctx, "unix", p.opts.Socket)
	if err != nil {
		return false, fmt.Errorf("connect to NRI: %w", err)
	}
	mux := multiplex.Multiplex(trunk)
	defer func() { _ = mux.Close() }()
	requests, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return false, fmt.Errorf("serve NRI: %w", err)
	}
	runtime, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return false, fmt.Errorf("connect to NRI: %w", err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return false, fmt.Errorf("serve NRI: %w", err)
	}
	client := ttrpc.NewClient(runtime, ttrpc.WithOnClose(func() { stop(errClosed) }))
	var handlers gate
	p.serve(server, &handlers, stop)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(ctx, requests)
	}()
	defer func() {
		stop(nil)
		_ = client.Close()
		_ = server.Close()
		_ = mux.Close()
		<-served
		handlers.close()
	}()
	asking, done := context.WithTimeout(ctx, registration)
	_, err = api.NewRuntimeClient(client).RegisterPlugin(asking, &api.RegisterPluginRequest{PluginName: pluginName, PluginIdx: pluginIndex})
	done()
	if err != nil {
		return false, fmt.Errorf("register with NRI: %w", err)
	}
	<-ctx.Done()
	return true, context.Cause(ctx)
}

// pluginService is the name of NRI's service of plug-ins, of version v1alpha1 of its protocol.
const pluginService = "nri.pkg.api.v1alpha1.Plugin"

// serve has the server answer what the runtime asks a plug-in for one event. Whatever else it asks
// is answered as not implemented.
func (p *plugin) serve(server *ttrpc.Server, handlers *gate, stop context.CancelCauseFunc) {
	server.RegisterService(pluginService, &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Configure": answer(func(_ context.Context, q *api.ConfigureRequest) *api.ConfigureResponse {
			if limit := time.Duration(q.GetRequestTimeout()) * time.Millisecond; limit > 0 {
				p.hold.Store(int64(min(LongestHold, limit/partOfLimit)))
			}
			p.log.Info("the container runtime announces containers before they start (NRI)", "runtime", q.GetRuntimeName(), "version", q.GetRuntimeVersion())
			var events api.EventMask
			events.Set(api.Event_START_CONTAINER)
			return &api.ConfigureResponse{Events: int32(events)}
		}),
		// What runs already is read from CRI.
		"Synchronize": answer(func(_ context.Context, q *api.SynchronizeRequest) *api.SynchronizeResponse {
			return &api.SynchronizeResponse{More: q.GetMore()}
		}),
		"Shutdown": answer(func(context.Context, *api.Empty) *api.Empty {
			stop(errClosed)
			return &api.Empty{}
		}),
		"StartContainer": answer(func(asked context.Context, q *api.StartContainerRequest) *api.StartContainerResponse {
			p.starting(asked, q, handlers)
			// Never an error: it would keep the container from starting.
			return &api.StartContainerResponse{}
		}),
	}})
}

// starting tells of a container, and returns when that is done, and when time is up.
func (p *plugin) starting(ctx context.Context, q *api.StartContainerRequest, handlers *gate) {
	ctx, stop := context.WithTimeout(ctx, time.Duration(p.hold.Load()))
	told := make(chan struct{})
	go handlers.run(func() {
		defer close(told)
		defer stop()
		p.opts.Starting(ctx, q)
	})
	select {
	case <-told:
	case <-ctx.Done():
	}
}

// gate is what runs until it is closed.
type gate struct {
	mu     sync.RWMutex
	closed bool
}

// run runs something, unless the gate is closed.
func (g *gate) run(do func()) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.closed {
		do()
	}
}

// close waits for all that runs, after which nothing does.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// answer makes a method of a function.
func answer[Q, A any](of func(context.Context, *Q) *A) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		question := new(Q)
		if err := unmarshal(question); err != nil {
			return nil, err
		}
		return of(ctx, question), nil
	}
}
