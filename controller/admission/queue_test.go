package admission

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// review is one of so many bytes, of which nobody reads any; -1 does not say how
// many.
func review(bytes int64) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
	r.Body, r.ContentLength = io.NopCloser(nil), bytes
	return r
}

func TestLargeReviewsWaitForEachOther(t *testing.T) {
	const mib = 1 << 20
	for sentence, c := range map[string]struct {
		bytes  int64
		asked  int
		at     int
		others int64
	}{
		"the largest there are come one by one":       {7 * mib, 3, 1, 1 << 10},
		"as large as an object may be":                {3 * mib, 5, 2, 1 << 10},
		"one that does not say is as large as can be": {-1, 3, 1, 1 << 10},
		"small ones by the hundred, and a large one":  {1 << 10, 4100, 4096, 7 * mib},
		"those in between":                            {64 << 10, 260, 256, 3 * mib},
	} {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, release := make(chan int64, c.asked+1), make(chan struct{})
				q := &queue{patience: time.Second}
				h := q.before(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					in <- r.ContentLength
					<-release
				}))
				answers := make(chan int, c.asked+1)
				ask := func(bytes int64) {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, review(bytes))
					answers <- w.Code
				}
				for range c.asked {
					go ask(c.bytes)
				}
				synctest.Wait()
				if n := len(in); n != c.at {
					t.Errorf("%d are looked at at once, want %d", n, c.at)
				}
				go ask(c.others)
				synctest.Wait()
				if n := len(in); n != c.at+1 {
					t.Error("one of another size waits for them")
				}
				began := time.Now()
				for range c.asked - c.at {
					if code := <-answers; code != http.StatusTooManyRequests || time.Since(began) != q.patience {
						t.Errorf("who waits too long is told %d after %v", code, time.Since(began))
					}
				}
				close(release)
				for range c.at + 1 {
					if code := <-answers; code != http.StatusOK {
						t.Errorf("who was let in is told %d", code)
					}
				}
				if users := q.reviews.Users(); len(users) != 0 {
					t.Errorf("shares are left: %v", users)
				}
			})
		})
	}
}
