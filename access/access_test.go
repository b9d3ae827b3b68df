package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// server answers as an API server: a token is the name of its user, and reader may
// get /metrics.
type server struct {
	reviews int
	failing error
}

func (s *server) post(_ context.Context, at string, in, out any) error {
	if s.failing != nil {
		return s.failing
	}
	switch at {
	case tokenReviews:
		s.reviews++
		token, answer := in.(tokenReview).Spec.Token, out.(*tokenReview)
		answer.Status.Authenticated = !strings.HasPrefix(token, "bad")
		answer.Status.User = user{Username: token, Groups: []string{"g"}}
	case accessReviews:
		spec := in.(accessReview).Spec
		out.(*accessReview).Status.Allowed = spec.User == "reader" && spec.Groups[0] == "g" && spec.NonResourceAttributes == path{"/metrics", "get"}
	}
	return nil
}

func TestWhoIsLetIn(t *testing.T) {
	for name, c := range map[string]struct {
		method, path, authorization string
		failing                     error
		status                      int
	}{
		"one who may":                {"GET", "/metrics", "Bearer reader", nil, http.StatusOK},
		"one who may read this path": {"GET", "/debug", "Bearer reader", nil, http.StatusForbidden},
		"one who may get":            {"POST", "/metrics", "Bearer reader", nil, http.StatusForbidden},
		"one who may not":            {"GET", "/metrics", "Bearer other", nil, http.StatusForbidden},
		"a token that is none":       {"GET", "/metrics", "Bearer bad", nil, http.StatusUnauthorized},
		"nobody":                     {"GET", "/metrics", "", nil, http.StatusUnauthorized},
		"a password":                 {"GET", "/metrics", "Basic reader", nil, http.StatusUnauthorized},
		"an empty token":             {"GET", "/metrics", "Bearer ", nil, http.StatusUnauthorized},
		"a token without end":        {"GET", "/metrics", "Bearer " + strings.Repeat("r", maxToken+1), nil, http.StatusUnauthorized},
		"the API server is away":     {"GET", "/metrics", "Bearer reader", errors.New("connection refused"), http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			logged := 0
			s := &server{failing: c.failing}
			h := newGuard(s.post).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }), func(error) { logged++ })
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, nil)
			if c.authorization != "" {
				r.Header.Set("Authorization", c.authorization)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || strings.Contains(w.Body.String(), "served") != (c.status == http.StatusOK) || strings.Contains(w.Body.String(), "refused") {
				t.Errorf("%d %s, want %d", w.Code, w.Body, c.status)
			}
			if (logged > 0) != (c.failing != nil) {
				t.Errorf("%d failures are logged", logged)
			}
		})
	}
}

// TestReviewsAreBounded: a flood of bad tokens costs the API server little, and who
// was let in a moment ago is.
func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		h := newGuard(s.post).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(error) {})
		get := func(token string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		get("reader")
		for n := range 5000 {
			if code := get(fmt.Sprint("bad", n)); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
				t.Fatalf("a bad token: %d", code)
			}
		}
		if code := get("reader"); code != http.StatusOK || s.reviews > 2*perSecond {
			t.Errorf("%d after %d reviews", code, s.reviews)
		}
		<-time.After(allowedFor + time.Second)
		before := s.reviews
		if code := get("reader"); code != http.StatusOK || s.reviews != before+1 {
			t.Errorf("%d after %d reviews more, when the answer is too old", code, s.reviews-before)
		}
	})
}
