package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/skep-dev/skep/agent/readers/remote"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
)

// The bounds of reads of maps for users of the cluster: how many requests are remembered, so that each is answered once, how many
// are looked at at once, how long the controller may take to read a line, how often a line says that the agent is there, and how
// long a poll may last, of which the controller has 50 seconds.
const (
	maxReads    = 4096
	readsAtOnce = 16
	lineTime    = 15 * time.Second
	aliveEvery  = 5 * time.Second
	pollWithin  = 75 * time.Second
)

// errNoRequest says that a poll brought none.
var errNoRequest = errors.New("no request came")

// reads are those that the agent answers.
type reads struct {
	agent  *Agent
	reader *remote.Reader
	mu     sync.Mutex
	// taken are the ids of requests, which mu guards: of two that are the same, one is taken.
	taken *cache.LRUExpireCache
}

// ServeMapReads asks the controller for requests of users to read maps, and answers those whose seal holds, until ctx ends. It
// listens on nothing, and nothing waits for it. Without Options.MapReads it does nothing.
func (a *Agent) ServeMapReads(ctx context.Context) {
	if !a.opts.MapReads {
		return
	}
	r := &reads{agent: a, reader: remote.New(remote.Options{Root: a.opts.Node.BPFFS, Log: a.opts.Log}), taken: cache.NewLRUExpireCache(maxReads)}
	places := make(chan struct{}, readsAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	failures := 0
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		envelope, err := r.next(ctx)
		if err == nil {
			all.Go(func() {
				defer func() { <-places }()
				r.take(ctx, envelope)
			})
			failures = 0
			continue
		}
		<-places
		if errors.Is(err, errNoRequest) {
			failures = 0
			continue
		}
		// Where the controller was away a moment, it is asked again soon.
		if failures++; failures == 3 {
			a.opts.Log.Warn("cannot ask for requests to read maps; asking again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(Jitter{time.Second, 15 * time.Second}.after(failures)):
		}
	}
}

// do asks the mirror, with the node's token. The response is to be closed, and end called after that.
func (r *reads) do(ctx context.Context, method, path string, body io.Reader) (_ *http.Response, end func(), err error) {
	m := r.agent.opts.Mirror
	base, err := url.Parse(m.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, nil, errNoMirror
	}
	token, err := readFile(m.TokenFile, maxTokenBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("read token: %w", err)
	}
	transport, err := m.transport()
	if err != nil {
		return nil, nil, err
	}
	transport.ResponseHeaderTimeout = 0
	base.RawQuery = ""
	request, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path).String(), body)
	if err != nil {
		return nil, nil, scrub(err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		transport.CloseIdleConnections()
		return nil, nil, scrub(err)
	}
	return response, transport.CloseIdleConnections, nil
}

// next polls for a request.
func (r *reads) next(ctx context.Context) (intent.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	response, end, err := r.do(ctx, http.MethodGet, "v1/map-reads", nil)
	if err != nil {
		return nil, err
	}
	defer end()
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNoContent:
		return nil, errNoRequest
	case http.StatusOK:
		envelope, err := io.ReadAll(io.LimitReader(response.Body, mapread.MaxRequest+1))
		return envelope, scrub(err)
	case http.StatusNotFound:
		return nil, errors.New("the controller serves no reads of maps (404): it needs --map-reads-address")
	}
	return nil, fmt.Errorf("the controller answers %d", response.StatusCode)
}

// take answers a request whose seal holds, once.
func (r *reads) take(ctx context.Context, envelope intent.Envelope) {
	log, now := r.agent.opts.Log, time.Now()
	request, err := mapread.Open(r.agent.trust.Load(), envelope, r.agent.opts.NodeName, now)
	if err != nil {
		// Nothing of it can be believed, so there is no request to answer.
		log.Warn("a request to read a map is rejected", "error", err)
		return
	}
	if !r.isNew(request, now) {
		log.Warn("a request to read a map came again, and is rejected", "request", request.ID, "user", request.User)
		return
	}
	if err := r.answer(ctx, request); err != nil && ctx.Err() == nil {
		log.Info("an answer to a read of a map was not taken whole", "request", request.ID, "error", err)
	}
}

// isNew reports whether a request comes for the first time.
func (r *reads) isNew(request mapread.Request, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.taken.Get(request.ID); again {
		return false
	}
	r.taken.Add(request.ID, nil, request.Kept(now))
	return true
}

// answer reads what a request asks for, and sends it while it is read.
func (r *reads) answer(ctx context.Context, request mapread.Request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	body, to := io.Pipe()
	lines := &lines{to: to, buffer: bufio.NewWriterSize(to, 32<<10), prompt: request.Operation == mapread.Watch, stalled: func() {
		cancel(errors.New("the controller takes no lines"))
		_ = to.CloseWithError(errors.New("the controller takes no lines"))
	}}
	var work sync.WaitGroup
	work.Go(func() {
		r.reader.Read(ctx, request, lines.send)
		_ = to.CloseWithError(lines.end())
	})
	work.Go(func() { lines.keepAlive(ctx) })
	response, end, err := r.do(ctx, http.MethodPost, "v1/map-reads/"+request.ID, body)
	// Who has an answer reads no more: the user is gone, or has all.
	cancel(nil)
	_ = body.CloseWithError(io.ErrClosedPipe)
	work.Wait()
	if err != nil {
		return err
	}
	defer end()
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
func (l *lines) send(a mapread.Answer) error {
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
