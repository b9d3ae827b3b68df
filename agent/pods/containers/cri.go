package containers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/agent/queue"
)

// The waits between attempts: with a runtime that does not answer, and with a container that
// is left out.
const (
	firstWait   = 100 * time.Millisecond
	longestWait = 10 * time.Second
	// hungWait is longestWait of one for which the runtime hangs.
	hungWait = 2 * time.Minute
)

// lookTimeout bounds the look at one sandbox or container, and slowLook is how long it takes before others begin
// next to it, of which there are maxLooks at once. A namespace has one.
const (
	lookTimeout = 3 * time.Second
	slowLook    = time.Second
	maxLooks    = 32
)

// maxEvents is how many events may wait. The list has what is lost beyond.
const maxEvents = 256

// NewCRI returns the Source of the containers that a runtime such as containerd or CRI-O runs.
// It connects to nothing before the first Snapshot. To look at the processes of containers,
// it needs the PID namespace of the runtime (hostPID) and CAP_SYS_PTRACE; the socket
// belongs to root.
func NewCRI(o Options) (Source, error) {
	o.fill()
	socket := strings.TrimPrefix(o.Endpoint, "unix://")
	if !filepath.IsAbs(socket) || o.CgroupRoot == "" {
		return nil, fmt.Errorf("make source of containers: the endpoint %q is no absolute path of a socket, or no mount of cgroup2 is named", o.Endpoint)
	}
	labels := newKept()
	read := func(ctx context.Context, st *state, starts Starts) {
		r := &reader{looker: looker{opts: o, kept: labels, state: st}, socket: socket, starts: starts, retries: map[string]retry{}}
		r.read(ctx)
	}
	if o.NRI == "" {
		return &source{opts: o, kept: labels, read: func(ctx context.Context, st *state) { read(ctx, st, nil) }}, nil
	}
	if o.NRI = strings.TrimPrefix(o.NRI, "unix://"); !filepath.IsAbs(o.NRI) {
		return nil, fmt.Errorf("make source of containers: %q is no absolute path of a socket for NRI plug-ins", o.NRI)
	}
	s := &announcer{source: source{opts: o, kept: labels}}
	s.read = func(ctx context.Context, st *state) { read(ctx, st, s.listener()) }
	return s, nil
}

// looker looks at single sandboxes and containers. Its methods may be called from any goroutine.
type looker struct {
	opts   Options
	kept   *kept
	state  *state
	node   *node
	exits  *process.Exits
	client cri.RuntimeServiceClient
}

// reader reads the containers of one runtime. One goroutine uses it.
type reader struct {
	looker
	socket string
	// starts are asked about containers that are about to start; nil where they are not.
	starts Starts
	// announced are the goroutines that serve them; nil until they run.
	announced *sync.WaitGroup
	// retries are when containers and sandboxes that are left out are looked at again.
	retries map[string]retry
	// queue has the looks of one connection, and looks those that were not collected, by id. ended holds a value when
	// one has ended.
	queue *queue.Queue
	looks map[string]*look
	ended chan struct{}
	// listed: the list was read once.
	listed bool
	// answered: the connection was of use.
	answered bool
}

// retry is the next look at a container or a sandbox.
type retry struct {
	at   time.Time
	wait time.Duration
	// sandbox is that of a container, and of its pod, as far as lists and events say.
	sandbox string
	of      Pod
}

// read reads until the context ends, over any number of connections.
func (r *reader) read(ctx context.Context) {
	wait := firstWait
	for ctx.Err() == nil {
		r.answered = false
		err := r.open(ctx)
		if ctx.Err() != nil {
			break
		}
		r.state.failed(r.socket, r.opts.Clock(), err)
		if r.answered {
			wait = firstWait
		}
		r.opts.Log.Debug("the container runtime does not answer", "endpoint", r.socket, "error", err, "again", wait)
		rest(ctx, wait)
		wait = min(2*wait, longestWait)
	}
	if r.announced != nil {
		r.announced.Wait()
	}
	if r.exits != nil {
		r.exits.Close()
	}
	if r.node != nil {
		r.node.close()
	}
}

// rest waits for the time, or the end of the context.
func rest(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// open prepares all that is needed, and follows the runtime until it fails.
func (r *reader) open(ctx context.Context) error {
	var err error
	if r.node == nil {
		if r.node, err = openNode(r.opts.CgroupRoot); err != nil {
			return err
		}
	}
	if r.exits == nil {
		if r.exits, err = process.WatchExits(r.state.remove); err != nil {
			return err
		}
	}
	conn, err := dialCRI(r.socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	r.client = cri.NewRuntimeServiceClient(conn)
	r.announce(ctx)
	return r.follow(ctx)
}

// dialCRI makes a connection to a runtime's socket, which is opened when it is first used.
func dialCRI(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// begin begins the looks of one connection.
func (r *reader) begin() {
	r.looks, r.ended = map[string]*look{}, make(chan struct{}, 1)
	r.queue = queue.New(queue.Options{Concurrent: maxLooks, Slow: slowLook, Log: r.opts.Log, Wake: func() {
		select {
		case r.ended <- struct{}{}:
		default:
		}
	}, SlowMessage: "the container runtime takes long to answer; others of the namespace wait"})
}

// follow reads the list, and then what changes, until the runtime fails.
func (r *reader) follow(ctx context.Context) error {
	r.begin()
	defer r.queue.Wait()
	defer r.queue.Close()
	ctx, stop := context.WithCancel(ctx)
	events := make(chan *cri.ContainerEventResponse, maxEvents)
	ended := make(chan struct{})
	// The events begin before the list, so that none is lost between them.
	go func() {
		defer close(ended)
		r.stream(ctx, events)
	}()
	defer func() {
		stop()
		<-ended
	}()
	interval := r.opts.Relist
	// The runtime does not say when it begins to send events: one list more has what came
	// before.
	relist := r.opts.Clock().Add(r.opts.Interval)
	if err := r.list(ctx); err != nil {
		return err
	}
	without := (<-chan struct{})(ended)
	for {
		timer := time.NewTimer(r.next(relist))
		var err error
		select {
		case <-ctx.Done():
		case <-without:
			// It has none, or fails: its list says which.
			interval, relist, without = r.opts.Interval, r.opts.Clock(), nil
		case <-r.ended:
			err = r.collect()
		case <-r.kept.grown:
			// The list has all labels of each pod.
			err = r.list(ctx)
		case e := <-events:
			err = r.happened(ctx, e)
		case <-timer.C:
			if r.opts.Clock().Before(relist) {
				r.again()
				break
			}
			err = r.list(ctx)
			relist = r.opts.Clock().Add(interval)
		}
		timer.Stop()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
}

// next is how long there is nothing to do: until the next list, or the next look at something
// that is left out.
func (r *reader) next(relist time.Time) time.Duration {
	for _, one := range r.retries {
		if one.at.Before(relist) {
			relist = one.at
		}
	}
	return max(relist.Sub(r.opts.Clock()), 0)
}

// stream passes events on until the runtime sends none any more. One without events, such as
// containerd before 1.7, says so at once.
func (r *reader) stream(ctx context.Context, to chan<- *cri.ContainerEventResponse) {
	s, err := r.client.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	for err == nil {
		var e *cri.ContainerEventResponse
		if e, err = s.Recv(); err == nil {
			select {
			case to <- e:
			case <-ctx.Done():
				return
			}
		}
	}
	if ctx.Err() == nil && status.Code(err) != codes.Unimplemented {
		r.opts.Log.Debug("the container runtime sends no events; its list is read instead", "endpoint", r.socket, "error", err)
	}
}

// list reads which sandboxes and containers run, and looks at those that are new.
func (r *reader) list(ctx context.Context) error {
	sandboxes, err := call(ctx, &r.looker, r.client.ListPodSandbox, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	running, err := call(ctx, &r.looker, r.client.ListContainers, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	if n := max(len(sandboxes.GetItems()), len(running.GetContainers())); n > maxContainers {
		return fmt.Errorf("list containers: the runtime has %d, and at most %d are read", n, maxContainers)
	}
	ids, pods := map[string]bool{}, map[string]Pod{}
	for _, one := range sandboxes.GetItems() {
		ids[one.GetId()], pods[one.GetId()] = true, listedPod(one.GetMetadata())
		r.state.relabel(one.GetId(), one.GetLabels(), r.kept)
		r.look(one.GetId(), "", pods[one.GetId()])
	}
	for _, one := range running.GetContainers() {
		ids[one.GetId()] = true
		r.look(one.GetId(), one.GetPodSandboxId(), pods[one.GetPodSandboxId()])
	}
	if !r.listed {
		// The first list is whole: it names each one that it does not know.
		r.queue.Settle(ctx)
	}
	r.reportSlow()
	if err := errors.Join(r.collect(), ctx.Err()); err != nil {
		return err
	}
	for id := range r.retries {
		if !ids[id] {
			delete(r.retries, id)
		}
	}
	r.state.listed(ids)
	r.state.answered()
	r.answered, r.listed = true, true
	return nil
}

// happened handles an event: it looks at that container alone.
func (r *reader) happened(ctx context.Context, e *cri.ContainerEventResponse) error {
	id, sandbox := e.GetContainerId(), e.GetPodSandboxStatus().GetId()
	switch e.GetContainerEventType() {
	case cri.ContainerEventType_CONTAINER_STARTED_EVENT:
		switch sandbox {
		case "":
			// Only the list says whose it is.
			return r.list(ctx)
		case id:
			sandbox = ""
		}
		r.look(id, sandbox, listedPod(e.GetPodSandboxStatus().GetMetadata()))
	case cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT:
		// What runs leaves with its process.
		if one := r.looks[id]; one != nil {
			// Its answer says nothing any more.
			one.ticket.Cancel()
			delete(r.looks, id)
		}
		delete(r.retries, id)
		r.state.unskip(id)
	}
	return nil
}

// again looks at what was left out, where it is time.
func (r *reader) again() {
	for id, one := range maps.Clone(r.retries) {
		r.look(id, one.sandbox, one.of)
	}
}

// call makes one call within the time for it.
func call[Q, A any](ctx context.Context, r *looker, of func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) (A, error) {
	return callFor(ctx, r.opts.Timeout, of, question)
}

// callFor makes one call within a time.
func callFor[Q, A any](ctx context.Context, timeout time.Duration, of func(context.Context, Q, ...grpc.CallOption) (A, error), question Q) (A, error) {
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	return of(ctx, question)
}
