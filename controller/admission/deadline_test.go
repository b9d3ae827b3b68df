package admission

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestAReviewEndsBeforeTheAPIServerStopsWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		query string
		want  time.Duration
	}{
		"it waits ten seconds":     {"?timeout=10s", 9 * time.Second},
		"it waits one second":      {"?timeout=1s", 500 * time.Millisecond},
		"it does not say how long": {"", 0},
		"it says nothing of sense": {"?timeout=soon", 0},
		"it does not wait":         {"?timeout=-1s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inTime(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					end, bounded := r.Context().Deadline()
					if bounded != (c.want > 0) || bounded && time.Until(end) != c.want {
						t.Errorf("bounded %t, for %s; want %s", bounded, time.Until(end), c.want)
					}
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/"+c.query, http.NoBody))
			})
		})
	}
}
