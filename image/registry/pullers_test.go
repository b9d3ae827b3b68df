package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

func TestNobodyWaitsForAnothersPing(t *testing.T) {
	asked, let := make(chan struct{}, 16), make(chan struct{})
	srv := images.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-let
		w.WriteHeader(http.StatusNotFound)
	}))
	answer := sync.OnceFunc(func() { close(let) })
	t.Cleanup(answer)
	c := newTestClient(t)
	r := image.Resolved{Registry: srv.Host, Repository: "bpf/x", Digest: "sha256:" + strings.Repeat("a", 64)}
	first := make(chan error, 1)
	go func() {
		_, err := c.Pull(t.Context(), r)
		first <- err
	}()
	<-asked
	at, err := c.Attachments(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func(context.Context) error{
		"Resolve":   func(ctx context.Context) error { _, err := c.Resolve(ctx, srv.Host+"/bpf/x:v1"); return err },
		"Pull":      func(ctx context.Context) error { _, err := c.Pull(ctx, r); return err },
		"Referrers": func(ctx context.Context) error { _, _, err := at.Referrers(ctx); return err },
		"Tagged":    func(ctx context.Context) error { _, err := at.Tagged(ctx, "v1"); return err },
		"Blob":      func(ctx context.Context) error { _, err := at.Blob(ctx, handmade("", nil).Root); return err },
	} {
		err := ask(soon(t))
		refused(t, err, image.ErrUnavailable, "deadline exceeded")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's end", name, err)
		}
		if len(first) > 0 {
			t.Fatalf("%s waited for as long as another's ping took", name)
		}
	}
	answer()
	refused(t, <-first, image.ErrNotFound, "")
}

func TestNobodyFailsForWhoGaveUp(t *testing.T) {
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		asked := 0
		got, err := within(t.Context(), func() (string, error) {
			if asked++; asked == 1 {
				return "", fmt.Errorf("ping: %w", end)
			}
			return "pulled", nil
		})
		if got != "pulled" || err != nil {
			t.Errorf("%q, %v: it was another's ping that ended", got, err)
		}
	}
}

func TestRepositoriesNeverSeenAgainAreForgotten(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t)
	r := mustPush(t, c, srv.Host+"/bpf/one:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	mustPull(t, c, r)
	before := c.pullers.now
	for i := range 4 * maxRepositories {
		other := r
		other.Repository = fmt.Sprint("bpf/", i)
		if _, err := c.registry(other); err != nil {
			t.Fatal(err)
		}
	}
	if c.pullers.now == before || len(c.pullers.asked) > maxRepositories {
		t.Errorf("one Puller remembers %d repositories", len(c.pullers.asked))
	}
	mustPull(t, c, r)
	srv.Taken()
	mustPull(t, c, r)
	for _, request := range srv.Taken() {
		if request == "GET /v2/" {
			t.Error("a repository that is in use is pinged each time")
		}
	}
}
