package noderequests

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// poll has an agent poll, and take a request.
func (h *Hub) poll(t *testing.T, node string) (taken <-chan error) {
	t.Helper()
	agent, conn := net.Pipe()
	h.park(node, conn)
	done := make(chan error, 1)
	go func() {
		response, err := http.ReadResponse(bufio.NewReader(agent), nil)
		if err == nil {
			err = response.Body.Close()
		}
		done <- err
	}()
	return done
}

// deadlined is a recorder with deadlines.
type deadlined struct{ *httptest.ResponseRecorder }

func (deadlined) SetReadDeadline(time.Time) error { return nil }

// TestAnAgentThatCameToAnotherReplicaIsAskedThere without the wait for one that is between two polls: each of its connections may lead to
// another replica.
func TestAnAgentThatCameToAnotherReplicaIsAskedThere(t *testing.T) {
	sealer := seals.New(t).Sealer
	synctest.Test(t, func(t *testing.T) {
		ask := func(a *Asker) (io.ReadCloser, time.Duration, error) {
			began := time.Now()
			answer, err := a.Ask(t.Context(), viewread.Request{Header: noderequest.NewHeader("one", "ann", began)})
			return answer, time.Since(began), err
		}
		a := &Asker{Hub: NewHub(), Sealer: func() *intent.Sealer { return sealer }}
		// It polled this replica a moment ago.
		taken := a.Hub.poll(t, "one")
		if _, _, err := ask(a); err == nil {
			t.Fatal("a request is answered without an agent")
		}
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
		a.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("there")), nil
		}
		if answer, after, err := ask(a); err != nil || after > deliverTime/4 {
			t.Errorf("%v %v after %s", answer, err, after)
		}
		// It comes back while the other is asked.
		a.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) {
			taken = a.Hub.poll(t, "one")
			return nil, ErrNotHere
		}
		_, _, _ = ask(a)
		synctest.Wait()
		select {
		case err := <-taken:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("an agent that came back is not asked")
		}
		// This replica is one of those behind the Service.
		a.Relay = func(ctx context.Context, node, id string, envelope []byte) (io.ReadCloser, error) {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(envelope))
			r.SetPathValue("node", node)
			r.SetPathValue("id", id)
			w, began := deadlined{httptest.NewRecorder()}, time.Now()
			if a.Hub.Relay(w, r); w.Code != http.StatusNotFound || time.Since(began) > 0 {
				t.Errorf("it answers itself %d after %s", w.Code, time.Since(began))
			}
			return nil, ErrNotHere
		}
		_, _, _ = ask(a)
		// It is nowhere.
		a.Relay = func(context.Context, string, string, []byte) (io.ReadCloser, error) { return nil, net.ErrClosed }
		if _, _, err := ask(a); err != ErrNotHere { //nolint:errorlint // It is returned as it is.
			t.Error(err)
		}
	})
}
