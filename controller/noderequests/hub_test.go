package noderequests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/harness/await"
)

// agents serves a Hub as the mirror does: the header Node takes the place of a token.
func agents(t *testing.T, h *Hub) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /next", func(w http.ResponseWriter, r *http.Request) { h.Next(w, r, r.Header.Get("Node")) })
	mux.HandleFunc("POST /answers/{id}", func(w http.ResponseWriter, r *http.Request) { h.Answer(w, r, r.Header.Get("Node")) })
	mux.HandleFunc("POST /relay/{node}/{id}", h.Relay)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// send sends a request of a node's agent.
func send(ctx context.Context, s *httptest.Server, node, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Node", node)
	return s.Client().Do(r)
}

// polls polls once for a node, and answers by what respond writes.
func polls(t *testing.T, s *httptest.Server, node, answersAs string, respond io.Reader) <-chan int {
	t.Helper()
	code := make(chan int, 1)
	go func() {
		response, err := send(t.Context(), s, node, http.MethodGet, "/next", nil)
		if err != nil {
			code <- 0
			return
		}
		id, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response, err = send(t.Context(), s, answersAs, http.MethodPost, "/answers/"+string(id), respond); err != nil {
			code <- 0
			return
		}
		_ = response.Body.Close()
		code <- response.StatusCode
	}()
	return code
}

// ask asks until the node's agent polls.
func ask(t *testing.T, h *Hub, node, id string) (io.ReadCloser, error) {
	t.Helper()
	for {
		answer, err := h.Ask(t.Context(), node, id, []byte(id), time.Minute)
		if !errors.Is(err, ErrNotHere) {
			return answer, err
		}
	}
}

func TestAnAgentAnswersRequestsForItsNode(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	code := polls(t, s, "one", "one", strings.NewReader("whole\n"))
	answer, err := ask(t, h, "one", "id1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer)
	if string(body) != "whole\n" || err != nil || answer.Close() != nil {
		t.Errorf("%q %v", body, err)
	}
	if got := <-code; got != http.StatusOK {
		t.Errorf("the agent is answered %d", got)
	}
	if len(h.waiting) != 0 {
		t.Errorf("requests are left: %v", h.waiting)
	}
}

func TestAnAgentAnswersForNoOtherNode(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	code := polls(t, s, "one", "two", strings.NewReader("of another node\n"))
	asked := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			_, err := h.Ask(ctx, "one", "id1", []byte("id1"), time.Minute)
			if !errors.Is(err, ErrNotHere) {
				asked <- err
				return
			}
		}
	}()
	if got := <-code; got != http.StatusNotFound {
		t.Errorf("another node's agent is answered %d", got)
	}
	cancel()
	if err := <-asked; err == nil {
		t.Error("its answer was taken")
	}
}

// TestWhoReadsNoMoreEndsTheAgentsAnswer while the agent sends without end.
func TestWhoReadsNoMoreEndsTheAgentsAnswer(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	body, to := io.Pipe()
	code := polls(t, s, "one", "one", body)
	answer, err := ask(t, h, "one", "id1")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if _, err := fmt.Fprintln(to, "{}"); err != nil {
				return
			}
		}
	}()
	if _, err := io.ReadFull(answer, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	select {
	case <-code:
	case <-time.After(time.Minute):
		t.Error("the agent is not told")
	}
	_ = to.Close()
}

func TestARequestForANodeThatDoesNotPollIsAnsweredAtOnce(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	if _, err := h.Ask(t.Context(), "one", "id1", nil, time.Hour); !errors.Is(err, ErrNotHere) {
		t.Error(err)
	}
	response, err := send(t.Context(), s, "", http.MethodPost, "/relay/one/id1", strings.NewReader("id1"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("a replica is answered %d", response.StatusCode)
	}
}

func TestAReplicaHasTheAnswerOfAnAgentThatPollsAnother(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	polls(t, s, "one", "one", strings.NewReader("by another\n"))
	for {
		response, err := send(t.Context(), s, "", http.MethodPost, "/relay/one/id1", strings.NewReader("id1"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode == http.StatusNotFound {
			continue // It does not poll yet.
		}
		if string(body) != "by another\n" || err != nil {
			t.Errorf("%d %q %v", response.StatusCode, body, err)
		}
		return
	}
}

func TestANodeHasFewPolls(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	ctx, end := context.WithCancel(t.Context())
	poll := func(node string) <-chan int {
		code := make(chan int, 1)
		go func() {
			response, err := send(ctx, s, node, http.MethodGet, "/next", nil)
			if err != nil {
				code <- 0
				return
			}
			_ = response.Body.Close()
			code <- response.StatusCode
		}()
		return code
	}
	for n := range maxPolls {
		poll("one")
		await.True(t, "a poll", time.Minute, func() bool { return h.waitingPolls("one") == n+1 })
	}
	if code := <-poll("one"); code != http.StatusTooManyRequests {
		t.Errorf("one node's third poll is answered %d", code)
	}
	poll("two")
	await.True(t, "another node's poll", time.Minute, func() bool { return h.waitingPolls("two") == 1 })
	// Those of an agent that is gone take no place of its successor's.
	end()
	await.True(t, "the agent to be gone", time.Minute, func() bool { return h.allGone("one") })
	ctx = t.Context()
	last := poll("one")
	await.True(t, "the successor's poll", time.Minute, func() bool { return h.waitingPolls("one") == 1 || len(last) == 1 })
	_ = h.Connections(nil).Close()
	if code := <-last; code != http.StatusNoContent {
		t.Errorf("the successor's poll is answered %d", code)
	}
}

// allGone reports whether the agents of all polls of a node closed their connections.
func (h *Hub) allGone(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(h.nodes[name].polls, func(p *parked) bool { return !p.gone() })
}

// TestAReplicaThatEndsHandsOutNoRequest to an agent that polls it.
func TestAReplicaThatEndsHandsOutNoRequest(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	next := h.Connections(s.Listener.Addr())
	for range 2 {
		code := make(chan int, 1)
		go func() {
			response, err := send(t.Context(), s, "one", http.MethodGet, "/next", nil)
			if err != nil {
				t.Error(err)
				code <- 0
				return
			}
			_ = response.Body.Close()
			code <- response.StatusCode
		}()
		await.True(t, "a poll", time.Minute, func() bool { return h.waitingPolls("one") == 1 || len(code) == 1 })
		// The second poll comes after the end.
		_ = next.Close()
		if got := <-code; got != http.StatusNoContent {
			t.Errorf("an agent that polls is answered %d", got)
		}
	}
}

// TestAPollThatWasAnsweredLeavesItsConnection for the next one, and for answers.
func TestAPollThatWasAnsweredLeavesItsConnection(t *testing.T) {
	h := NewHub()
	s := httptest.NewTLSServer(agents(t, h).Config.Handler)
	t.Cleanup(s.Close)
	next := h.Connections(s.Listener.Addr())
	t.Cleanup(func() { _ = next.Close() })
	go func() { _ = s.Config.Serve(next) }()
	opened := atomic.Int32{}
	client := s.Client().Transport.(*http.Transport)
	client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	for n := range 10 {
		code := polls(t, s, "one", "one", strings.NewReader("whole\n"))
		answer, err := ask(t, h, "one", fmt.Sprint("id", n))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer); string(body) != "whole\n" || err != nil || answer.Close() != nil {
			t.Errorf("%q %v", body, err)
		}
		if got := <-code; got != http.StatusOK {
			t.Errorf("the agent is answered %d", got)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("ten polls and answers took %d connections", n)
	}
}

// TestAnAgentThatIsGoneIsHandedNoRequest: the request waits for the poll of the agent that takes its place.
func TestAnAgentThatIsGoneIsHandedNoRequest(t *testing.T) {
	h := NewHub()
	s := agents(t, h)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := send(ctx, s, "one", http.MethodGet, "/next", nil); err == nil {
			_ = response.Body.Close()
		}
	}()
	await.True(t, "a poll", time.Minute, func() bool { return h.waitingPolls("one") == 1 })
	end()
	<-ended
	await.True(t, "the agent to be gone", time.Minute, func() bool { return h.allGone("one") })
	asked := make(chan error, 1)
	go func() {
		answer, err := h.Ask(t.Context(), "one", "id1", []byte("id1"), time.Minute)
		if err == nil {
			_ = answer.Close()
		}
		asked <- err
	}()
	await.True(t, "the request to find no poll", time.Minute, func() bool { return h.waitingPolls("one") == 0 })
	code := polls(t, s, "one", "one", strings.NewReader("by its successor\n"))
	if err := <-asked; err != nil || <-code != http.StatusOK {
		t.Error(err)
	}
}

// waitingPolls counts the polls of a node.
func (h *Hub) waitingPolls(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[name]; n != nil {
		return len(n.polls)
	}
	return 0
}
