// Package noderequests carries sealed requests of people to the agents of nodes, which poll for them, and agents' answers back, also
// between replicas. It decides on no right, and reads no request and no answer.
package noderequests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/noderequest"
)

// The times of the way to an agent: how long a poll of an agent lasts, how long a request waits for the agent's next poll, how
// long the agent may take to begin its answer, and after which time without a line the answer is taken to be lost.
const (
	pollTime    = 50 * time.Second
	deliverTime = 3 * time.Second
	relayTime   = time.Second
	answerTime  = 10 * time.Second
	silence     = 30 * time.Second
)

// maxPolls is how many polls one node may have, and forgetAfter how long a node is remembered.
const (
	maxPolls    = 2
	forgetAfter = 10 * time.Minute
)

// ErrNotHere says that no agent of a node polls this replica, or any.
var ErrNotHere = errors.New("its agent does not ask this controller for requests")

// Hub hands sealed requests to agents, which poll for them, and takes their answers. Agents listen on nothing. It is safe for
// concurrent use, and needs no seal to hold: agents verify it.
type Hub struct {
	mu    sync.Mutex
	nodes map[string]*node
	// waiting are the requests that were handed out, by id, until their answer begins.
	waiting map[string]*pending
}

// node is what is known of a node's agent.
type node struct {
	polls int
	seen  time.Time
	queue chan *pending
}

// pending is a request on its way.
type pending struct {
	id, node string
	envelope intent.Envelope
	// answer yields the body of the agent's answer; done is closed when nothing more of it is read.
	answer chan io.Reader
	done   chan struct{}
}

// NewHub makes a Hub.
func NewHub() *Hub { return &Hub{nodes: map[string]*node{}, waiting: map[string]*pending{}} }

// begin counts a poll of a node; nil where it has too many.
func (h *Hub) begin(name string) *node {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for other, n := range h.nodes {
		if n.polls == 0 && now.Sub(n.seen) > forgetAfter {
			delete(h.nodes, other)
		}
	}
	n := h.nodes[name]
	if n == nil {
		n = &node{queue: make(chan *pending)}
		h.nodes[name] = n
	}
	if n.polls >= maxPolls {
		return nil
	}
	n.polls++
	return n
}

func (h *Hub) end(n *node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n.polls--
	n.seen = time.Now()
}

// Next answers an agent's poll with the next request for its node; none within the time of a poll is 204.
func (h *Hub) Next(w http.ResponseWriter, r *http.Request, name string) {
	n := h.begin(name)
	if n == nil {
		http.Error(w, "the node polls already", http.StatusTooManyRequests)
		return
	}
	defer h.end(n)
	// What is read of the connection meanwhile is its end.
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(2*pollTime)) != nil {
		http.Error(w, "the connection cannot wait", http.StatusInternalServerError)
		return
	}
	over := time.NewTimer(pollTime)
	defer over.Stop()
	select {
	case <-r.Context().Done():
		// The agent is gone, or this replica ends: an answer without a status would be an empty request.
		w.WriteHeader(http.StatusNoContent)
	case <-over.C:
		w.WriteHeader(http.StatusNoContent)
	case p := <-n.queue:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(p.envelope)
	}
}

// Answer takes an agent's answer to a request for its node.
func (h *Hub) Answer(w http.ResponseWriter, r *http.Request, name string) {
	id := r.PathValue("id")
	h.mu.Lock()
	p := h.waiting[id]
	if p != nil && p.node == name {
		delete(h.waiting, id)
	}
	h.mu.Unlock()
	if p == nil || p.node != name {
		http.Error(w, "no request waits for this answer", http.StatusNotFound)
		return
	}
	control := http.NewResponseController(w)
	body := &patient{Reader: r.Body, control: control, done: p.done}
	select {
	case p.answer <- body:
		select {
		case <-p.done:
		case <-r.Context().Done():
		}
	case <-p.done:
	case <-r.Context().Done():
	}
	if body.whole.Load() {
		// The connection takes the next answer, too.
		_ = control.SetReadDeadline(time.Time{})
		return
	}
	// An agent that still sends learns at once that its answer is not read any more.
	now := time.Now()
	_, _ = control.SetReadDeadline(now), control.SetWriteDeadline(now.Add(answerTime))
}

// patient reads a body for as long as lines come.
type patient struct {
	io.Reader

	control *http.ResponseController
	done    <-chan struct{}
	// whole reports that all of it was read.
	whole atomic.Bool
}

// Read implements io.Reader. After the end of the request it reads nothing, and takes its deadline from no one.
func (p *patient) Read(b []byte) (int, error) {
	if err := p.control.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	select {
	case <-p.done:
		return 0, net.ErrClosed
	default:
		n, err := p.Reader.Read(b)
		if err == io.EOF {
			p.whole.Store(true)
		}
		return n, err
	}
}

// Ask hands a sealed request to the agent of a node and returns its answer, to be closed. It is ErrNotHere where that agent does
// not poll here, or not within wait.
func (h *Hub) Ask(ctx context.Context, name, id string, envelope intent.Envelope, wait time.Duration) (io.ReadCloser, error) {
	p := &pending{id: id, node: name, envelope: envelope, answer: make(chan io.Reader), done: make(chan struct{})}
	h.mu.Lock()
	n := h.nodes[name]
	if n == nil || n.polls == 0 && time.Since(n.seen) > pollTime {
		h.mu.Unlock()
		return nil, ErrNotHere
	}
	h.waiting[id] = p
	h.mu.Unlock()
	body := &answered{finish: sync.OnceFunc(func() {
		close(p.done)
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting, id)
	})}
	if err := h.hand(ctx, n, p, wait); err != nil {
		body.finish()
		return nil, err
	}
	late := time.NewTimer(answerTime)
	defer late.Stop()
	select {
	case body.Reader = <-p.answer:
		return body, nil
	case <-ctx.Done():
		body.finish()
		return nil, context.Cause(ctx)
	case <-late.C:
		body.finish()
		return nil, fmt.Errorf("its agent took the request and did not answer within %s; see the log of skep-agent on that node", answerTime)
	}
}

// hand gives a request to a poll.
func (h *Hub) hand(ctx context.Context, n *node, p *pending, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case n.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return ErrNotHere
	}
}

// answered is the answer of an agent.
type answered struct {
	io.Reader

	finish func()
}

// Close ends the answer: the agent reads no more for it.
func (a *answered) Close() error {
	a.finish()
	return nil
}

// Relay answers a request of another replica, which the agent of the node polls here for.
func (h *Hub) Relay(w http.ResponseWriter, r *http.Request) {
	envelope, err := io.ReadAll(io.LimitReader(r.Body, noderequest.MaxRequest+1))
	if err != nil || len(envelope) > noderequest.MaxRequest {
		http.Error(w, "the request is too long, or did not arrive whole", http.StatusBadRequest)
		return
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Time{}) != nil {
		http.Error(w, "the connection cannot wait", http.StatusInternalServerError)
		return
	}
	answer, err := h.Ask(r.Context(), r.PathValue("node"), r.PathValue("id"), envelope, relayTime)
	switch {
	case errors.Is(err, ErrNotHere):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
		return
	}
	defer answer.Close()
	_, _ = io.Copy(prompt{w, control}, answer)
}

// prompt sends each write at once, to a reader that takes it in time.
type prompt struct {
	io.Writer

	control *http.ResponseController
}

// Write implements io.Writer.
func (p prompt) Write(b []byte) (int, error) {
	if err := p.control.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	n, err := p.Writer.Write(b)
	if err != nil {
		return n, err
	}
	return n, p.control.Flush()
}
