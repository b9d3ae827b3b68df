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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/noderequest"
)

// The times of the way to an agent: how long a poll of an agent lasts, how long a request waits for the agent's next poll, and before
// other replicas are asked, where each connection of an agent may lead, how long the agent may take to begin its answer, and after which
// time without a line the answer is taken to be lost.
const (
	pollTime    = 50 * time.Second
	deliverTime = 3 * time.Second
	passTime    = 50 * time.Millisecond
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
	// relayed are the ids of requests that other replicas are asked: this one may be among them.
	relayed map[string]bool
	// next takes connections whose polls were answered; nil closes them. ended says that this replica ends.
	next  *connections
	ended bool
}

// node is what is known of a node's agent.
type node struct {
	// polls wait for a request, and came is closed when another one comes.
	polls []*parked
	seen  time.Time
	came  chan struct{}
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
func NewHub() *Hub {
	return &Hub{nodes: map[string]*node{}, waiting: map[string]*pending{}, relayed: map[string]bool{}}
}

// Next answers an agent's poll with the next request for its node; none within the time of a poll is 204. Until then the connection waits alone:
// the handler ends.
func (h *Hub) Next(w http.ResponseWriter, _ *http.Request, name string) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the connection cannot wait: poll by HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	if buffered.Reader.Buffered() > 0 || conn.SetDeadline(time.Time{}) != nil {
		// The agent does not wait for an answer.
		_ = conn.Close()
		return
	}
	h.park(name, conn)
}

// park has a connection wait for a request for a node.
func (h *Hub) park(name string, conn net.Conn) {
	p := &parked{conn: conn}
	h.mu.Lock()
	now := time.Now()
	for other, n := range h.nodes {
		if len(n.polls) == 0 && now.Sub(n.seen) > forgetAfter {
			delete(h.nodes, other)
		}
	}
	n := h.nodes[name]
	if n == nil {
		n = &node{came: make(chan struct{})}
		h.nodes[name] = n
	}
	// Polls of an agent that was restarted take no place of its new ones.
	n.polls = slices.DeleteFunc(n.polls, func(p *parked) bool {
		gone := p.gone()
		if gone {
			p.timer.Stop()
			_ = p.conn.Close()
		}
		return gone
	})
	status := http.StatusTooManyRequests
	switch {
	case h.ended:
		status = http.StatusNoContent
	case len(n.polls) < maxPolls:
		status = 0
		p.timer = time.AfterFunc(pollTime, func() { h.expire(n, p) })
		n.polls = append(n.polls, p)
		close(n.came)
		n.came = make(chan struct{})
	}
	h.mu.Unlock()
	if status != 0 {
		_ = p.answer(status, nil, nil)
	}
}

// expire answers a poll to which no request came.
func (h *Hub) expire(n *node, p *parked) {
	h.mu.Lock()
	at, next := slices.Index(n.polls, p), h.next
	if at >= 0 {
		n.polls, n.seen = slices.Delete(n.polls, at, at+1), time.Now()
	}
	h.mu.Unlock()
	if at >= 0 {
		_ = p.answer(http.StatusNoContent, nil, next)
	}
}

// take takes the newest poll of a node; nil where there is none, and came is closed when one comes.
func (h *Hub) take(n *node) (p *parked, came <-chan struct{}, next *connections) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := len(n.polls) - 1; last >= 0 {
		p = n.polls[last]
		n.polls, n.seen = slices.Delete(n.polls, last, last+1), time.Now()
		p.timer.Stop()
	}
	return p, n.came, h.next
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
	if n == nil || len(n.polls) == 0 && time.Since(n.seen) > pollTime {
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
	for {
		poll, came, next := h.take(n)
		if poll != nil {
			if poll.gone() {
				_ = poll.conn.Close()
			} else if poll.answer(http.StatusOK, p.envelope, next) == nil {
				return nil
			}
			continue
		}
		select {
		case <-came:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return ErrNotHere
		}
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

// relays notes that other replicas are asked a request, until done is called.
func (h *Hub) relays(id string) (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.relayed[id] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.relayed, id)
	}
}

// Relay answers a request of another replica, which the agent of the node polls here for.
func (h *Hub) Relay(w http.ResponseWriter, r *http.Request) {
	envelope, err := io.ReadAll(io.LimitReader(r.Body, noderequest.MaxRequest+1))
	if err != nil || len(envelope) > noderequest.MaxRequest {
		http.Error(w, "the request is too long, or did not arrive whole", http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	own := h.relayed[r.PathValue("id")]
	h.mu.Unlock()
	if own {
		http.Error(w, ErrNotHere.Error(), http.StatusNotFound)
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
