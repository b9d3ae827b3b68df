package admission

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// crowded has a review under way at each replica, that does not say how large it is,
// and ends with the test or when it is told to.
func crowded(t *testing.T) (end func()) {
	t.Helper()
	asker := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var all sync.WaitGroup
	var bodies []*io.PipeWriter
	for _, one := range pair.running {
		where, err := url.Parse(called(t))
		if err != nil {
			t.Fatal(err)
		}
		where.Host = one.webhook
		read, write := io.Pipe()
		bodies = append(bodies, write)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, where.String(), read)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = -1
		all.Go(func() {
			if resp, err := asker.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	end = sync.OnceFunc(func() {
		for _, body := range bodies {
			_ = body.CloseWithError(errors.New("it ends here"))
		}
		all.Wait()
		asker.CloseIdleConnections()
	})
	t.Cleanup(end)
	return end
}

// TestLargeObjectsWaitForEachOther: each takes many times its size of a replica's
// memory, and whoever may write applications may write many at once.
func TestLargeObjectsWaitForEachOther(t *testing.T) {
	w := newWorld(t)
	image := w.signed()
	write := func(name string, bytes int) error {
		app := w.app(name, image)
		app.Annotations = map[string]string{"example.com/notes": strings.Repeat("x", bytes)}
		return admin.Create(t.Context(), app, client.DryRunAll)
	}
	end := crowded(t)
	w.until(func() error {
		err := write("large", 240<<10)
		if err != nil && strings.Contains(err.Error(), "too many requests") {
			return nil
		}
		return errors.Join(errors.New("a large one is not told to wait"), err)
	})
	if err := write("small", 1<<10); err != nil {
		t.Errorf("a small one: %v", err)
	}
	end()
	w.until(func() error { return write("large", 240<<10) })
}
