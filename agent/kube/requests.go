package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/agent/readers/remote"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// The bounds of requests of users of the cluster: how many are remembered, so that each is answered once, how many are looked at at
// once, how long the controller may take to read a line, how often a line says that the agent is there, and how long a poll may
// last, of which the controller has 50 seconds.
const (
	maxRequests    = 4096
	requestsAtOnce = 16
	lineTime       = 15 * time.Second
	aliveEvery     = 5 * time.Second
	pollWithin     = 75 * time.Second
)

// errNoRequest says that a poll brought none.
var errNoRequest = errors.New("no request came")

// requests are those that the agent answers.
type requests struct {
	agent *Agent
	// kinds answer by payload type.
	kinds map[string]opener
	mu    sync.Mutex
	// taken are the ids of requests, which mu guards: of two that are the same, one is taken.
	taken *cache.LRUExpireCache
}

// opener opens a request of one kind, and returns what sends its answer.
type opener func(t *intent.Trust, e intent.Envelope, node string, now time.Time) (openedRequest, error)

// openedRequest is a request whose seal holds.
type openedRequest struct {
	noderequest.Header
	// prompt says that each line is sent at once.
	prompt bool
	// answer sends lines, of which the last has an End or an Error, until ctx ends or send returns an error.
	answer func(ctx context.Context, send func(noderequest.Answer) error)
}

// mapReads answers requests to read maps.
func mapReads(reader *remote.Reader) opener {
	return func(t *intent.Trust, e intent.Envelope, node string, now time.Time) (openedRequest, error) {
		r, err := noderequest.Open[mapread.Request](t, e, node, now)
		answer := func(ctx context.Context, send func(noderequest.Answer) error) { reader.Read(ctx, r, send) }
		return openedRequest{r.Header, r.Operation == mapread.Watch, answer}, err
	}
}

// views answers requests to see the node.
func views(teller *nodeview.Teller) opener {
	return func(t *intent.Trust, e intent.Envelope, node string, now time.Time) (openedRequest, error) {
		r, err := noderequest.Open[viewread.Request](t, e, node, now)
		answer := func(ctx context.Context, send func(noderequest.Answer) error) { teller.Tell(ctx, r, send) }
		return openedRequest{r.Header, false, answer}, err
	}
}

// ServeRequests asks the controller for requests of users, and answers those whose seal holds, until ctx ends. It listens on
// nothing, and nothing waits for it. Without Options.MapReads and Options.View it does nothing.
func (a *Agent) ServeRequests(ctx context.Context) {
	r := &requests{agent: a, kinds: map[string]opener{}, taken: cache.NewLRUExpireCache(maxRequests)}
	if a.opts.MapReads {
		r.kinds[mapread.PayloadType] = mapReads(remote.New(remote.Options{Root: a.opts.Node.BPFFS, Log: a.opts.Log}))
	}
	if a.opts.View {
		r.kinds[viewread.PayloadType] = views(nodeview.NewTeller(a.viewer.View, a.opts.Log))
	}
	if len(r.kinds) == 0 {
		return
	}
	places := make(chan struct{}, requestsAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	failures, line := 0, r.newLine()
	defer func() { line.close() }()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		envelope, err := line.next(ctx)
		if err == nil {
			brought := line
			all.Go(func() {
				defer func() { brought.close(); <-places }()
				r.take(ctx, envelope, brought)
			})
			failures, line = 0, r.newLine()
			continue
		}
		<-places
		if errors.Is(err, errNoRequest) {
			failures = 0
			continue
		}
		// Where the controller was away a moment, it is asked again soon.
		if failures++; failures == 3 {
			a.opts.Log.Warn("cannot ask for requests of users; asking again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(Jitter{time.Second, 15 * time.Second}.after(failures)):
		}
	}
}

// newLine returns a line for one request: it is polled for and answered on the same connection, since another one may lead to a
// replica of the controller that does not wait for the answer.
func (r *requests) newLine() *mirrorLine { return &mirrorLine{mirror: r.agent.opts.Mirror} }

// next polls for a request.
func (l *mirrorLine) next(ctx context.Context) (intent.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	response, err := l.do(ctx, http.MethodGet, "v1/requests", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNoContent:
		return nil, errNoRequest
	case http.StatusOK:
		envelope, err := io.ReadAll(io.LimitReader(response.Body, noderequest.MaxRequest+1))
		return envelope, scrub(err)
	case http.StatusNotFound:
		return nil, errors.New("the controller has no requests of users (404): it needs --view or --map-reads")
	}
	return nil, fmt.Errorf("the controller answers %d", response.StatusCode)
}

// take answers a request whose seal holds, once.
func (r *requests) take(ctx context.Context, envelope intent.Envelope, line *mirrorLine) {
	log, now := r.agent.opts.Log, time.Now()
	open := r.kinds[noderequest.TypeOf(envelope)]
	if open == nil {
		log.Warn("a request of a user is rejected", "error", "it is of no kind that this agent was started to answer")
		return
	}
	request, err := open(r.agent.trust.Load(), envelope, r.agent.opts.NodeName, now)
	if err != nil {
		// Nothing of it can be believed, so there is no request to answer.
		log.Warn("a request of a user is rejected", "error", err)
		return
	}
	if !r.isNew(request.Header, now) {
		log.Warn("a request of a user came again, and is rejected", "request", request.ID, "user", request.User)
		return
	}
	if err := request.send(ctx, line); err != nil && ctx.Err() == nil {
		log.Info("an answer to a user was not taken whole", "request", request.ID, "error", err)
	}
}

// isNew reports whether a request comes for the first time.
func (r *requests) isNew(request noderequest.Header, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.taken.Get(request.ID); again {
		return false
	}
	r.taken.Add(request.ID, nil, request.Kept(now))
	return true
}

// send sends the answer to a request while it is made.
func (r openedRequest) send(ctx context.Context, line *mirrorLine) error {
	ctx, cancel := context.WithCancelCause(ctx)
	body, to := io.Pipe()
	lines := &lines{to: to, buffer: bufio.NewWriterSize(to, 32<<10), prompt: r.prompt, stalled: func() {
		cancel(errors.New("the controller takes no lines"))
		_ = to.CloseWithError(errors.New("the controller takes no lines"))
	}}
	var work sync.WaitGroup
	work.Go(func() {
		r.answer(ctx, lines.send)
		_ = to.CloseWithError(lines.end())
	})
	work.Go(func() { lines.keepAlive(ctx) })
	response, err := line.do(ctx, http.MethodPost, "v1/requests/"+r.ID, body)
	// Who has an answer reads no more: the user is gone, or has all.
	cancel(nil)
	_ = body.CloseWithError(io.ErrClosedPipe)
	work.Wait()
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the controller answers %d", response.StatusCode)
	}
	return nil
}

// lines are an answer on its way.
type lines struct {
	to      *io.PipeWriter
	prompt  bool
	stalled func()

	mu     sync.Mutex
	buffer *bufio.Writer
}

// send sends a line: at once where the answer is prompt, else with others.
func (l *lines) send(a noderequest.Answer) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return l.write(append(line, '\n'), l.prompt)
}

func (l *lines) write(line []byte, flush bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer time.AfterFunc(lineTime, l.stalled).Stop()
	_, err := l.buffer.Write(line)
	if err == nil && flush {
		err = l.buffer.Flush()
	}
	return err
}

// end sends what is left.
func (l *lines) end() error { return l.write(nil, true) }

// keepAlive has the controller know that the agent is there.
func (l *lines) keepAlive(ctx context.Context) {
	again := time.NewTicker(aliveEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			if l.write([]byte("{}\n"), true) != nil {
				return
			}
		}
	}
}
