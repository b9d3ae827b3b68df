package admission

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
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
	w.until(func() error {
		// A replica waits for a request no longer than some seconds.
		end := crowded(t)
		defer end()
		err := write("large", 240<<10)
		if err != nil && strings.Contains(err.Error(), "too many requests") {
			return nil
		}
		return errors.Join(errors.New("a large one is not told to wait"), err)
	})
	end := crowded(t)
	if err := write("small", 1<<10); err != nil {
		t.Errorf("a small one: %v", err)
	}
	end()
	w.until(func() error { return write("large", 240<<10) })
}

// TestTheMostContentsAreDeniedBeforeAReview throws forty applications at the API server at once whose maps have as many entries as
// the schema takes, and forty that have one more: no request of the first is given up, and none of the second costs a review.
func TestTheMostContentsAreDeniedBeforeAReview(t *testing.T) {
	w := newWorld(t)
	image, member := w.signed(), w.member("lee-of-"+w.namespace)
	const atOnce = 40
	number := apiextensionsv1.JSON{Raw: []byte("1")}
	for entries, reviewed := range map[int]bool{v1alpha1.MaxContents: true, v1alpha1.MaxContents + 1: false} {
		app := w.app("full", image)
		app.Spec.Maps = map[string]v1alpha1.Map{}
		for left := entries; left > 0; left -= v1alpha1.MaxMapEntries {
			list := slices.Repeat([]v1alpha1.MapEntry{{Key: number, Value: number}}, min(left, v1alpha1.MaxMapEntries))
			app.Spec.Maps[fmt.Sprintf("m%d", left)] = v1alpha1.Map{Contents: list}
		}
		before := total(pair.requests(v1alpha1.KindBpfApplication))
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				var err error
				for range 3 {
					// On a busy machine the API server may need more than a minute for its own checks of so many entries, and ends the request.
					if err = member.Create(t.Context(), app.DeepCopy(), client.DryRunAll); !apierrors.IsTimeout(err) {
						break
					}
				}
				// Its object has no such maps. On a busy machine there may be no time to find that out: then it is let in with a warning.
				denied := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "inspect/map") || err == nil
				if reviewed && !denied || !reviewed && !apierrors.IsInvalid(err) {
					t.Errorf("%d entries: %.300v", entries, err)
				}
			})
		}
		all.Wait()
		if n := total(pair.requests(v1alpha1.KindBpfApplication)) - before; n < atOnce && reviewed || n > 0 && !reviewed {
			t.Errorf("%d entries: %d of %d were reviewed", entries, n, atOnce)
		}
	}
}

// total adds up the requests of all verdicts.
func total(byVerdict map[string]int) (n int) {
	for _, of := range byVerdict {
		n += of
	}
	return n
}
