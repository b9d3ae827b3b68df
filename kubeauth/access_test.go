package kubeauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// server answers as an API server: a token is the name of its user, and reader may
// get /metrics.
type server struct {
	failing error
	// slow is how long a review takes.
	slow time.Duration

	mu      sync.Mutex
	reviews int
	// revoked: reader may not any more.
	revoked bool
}

func (s *server) post(_ context.Context, at string, in, out any) error {
	if s.failing != nil {
		return s.failing
	}
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	<-time.After(slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch at {
	case tokenReviews:
		s.reviews++
		token, answer := in.(tokenReview).Spec.Token, out.(*tokenReview)
		answer.Status.Authenticated = !strings.HasPrefix(token, "bad")
		answer.Status.User = user{Username: token, Groups: []string{"g"}}
	case accessReviews:
		spec := in.(accessReview).Spec
		out.(*accessReview).Status.Allowed = !s.revoked && spec.User == "reader" && spec.Groups[0] == "g" && spec.NonResourceAttributes == path{"/metrics", "get"}
	}
	return nil
}

// count is how many tokens were reviewed.
func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reviews
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

// asks returns how to get the metrics with a token.
func asks(t *testing.T, g *Guard) func(token string) int {
	h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(error) {})
	return func(token string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
}

// flood shows so many tokens that nobody reviewed.
func flood(t *testing.T, get func(token string) int, tokens int) {
	t.Helper()
	for n := range tokens {
		if code := get(fmt.Sprint("bad", n, time.Now().UnixNano())); code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
			t.Fatalf("a bad token: %d", code)
		}
	}
}

// TestReviewsAreBounded: a flood of bad tokens costs the API server little, and who
// was let in a moment ago is.
func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		get := asks(t, newGuard(s.post))
		get("reader")
		flood(t, get, 5000)
		if code := get("reader"); code != http.StatusOK || s.count() > 2*perSecond {
			t.Errorf("%d after %d reviews", code, s.count())
		}
		<-time.After(allowedFor + time.Second)
		before := s.count()
		if code := get("reader"); code != http.StatusOK || s.count() != before+1 {
			t.Errorf("%d after %d reviews more, when the answer is too old", code, s.count()-before)
		}
	})
}

// TestAFloodTakesNothingFromWhoWasAllowed has a scraper come by every so often while
// bad tokens never end.
func TestAFloodTakesNothingFromWhoWasAllowed(t *testing.T) {
	for _, interval := range []time.Duration{5 * time.Second, refreshAfter, allowedFor, 5 * time.Minute} {
		t.Run(interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				get := asks(t, newGuard(s.post))
				get("reader")
				for range 20 {
					for range int(interval / time.Second) {
						flood(t, get, 2*perSecond)
						<-time.After(time.Second)
					}
					flood(t, get, 2*perSecond)
					if code := get("reader"); code != http.StatusOK {
						t.Fatalf("the scraper gets %d", code)
					}
				}
			})
		})
	}
}

// TestAnAnswerIsRefreshedBeforeItExpires, and no request waits for that.
func TestAnAnswerIsRefreshedBeforeItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		get := asks(t, newGuard(s.post))
		get("reader")
		<-time.After(refreshAfter)
		const slow = time.Second
		s.mu.Lock()
		s.slow = slow
		s.mu.Unlock()
		began := time.Now()
		for range 50 {
			if code := get("reader"); code != http.StatusOK {
				t.Errorf("meanwhile: %d", code)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("requests waited %v", waited)
		}
		<-time.After(allowedFor - time.Second)
		if code := get("reader"); code != http.StatusOK || s.count() != 2 {
			t.Errorf("%d after %d reviews", code, s.count())
		}
		<-time.After(2 * slow)
	})
}

// TestWhoMayNoMoreIsRefused within the time that an answer counts.
func TestWhoMayNoMoreIsRefused(t *testing.T) {
	for sentence, pause := range map[string]time.Duration{"who asks often": time.Second, "who asks seldom": 2 * allowedFor} {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				get := asks(t, newGuard(s.post))
				get("reader")
				s.mu.Lock()
				s.revoked = true
				s.mu.Unlock()
				for began := time.Now(); time.Since(began) < allowedFor; {
					<-time.After(pause)
					get("reader")
				}
				synctest.Wait()
				if code := get("reader"); code != http.StatusForbidden {
					t.Errorf("it gets %d", code)
				}
			})
		})
	}
}

// answers is an API server that a client reaches without a network.
type answers struct{ posts int }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.posts++
	body := `{"status":{"authenticated":true,"user":{"username":"reader"}}}`
	if r.URL.Path == accessReviews {
		body = `{"status":{"allowed":true}}`
	}
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// TestTheClientBoundsNoReviews: the Guard does, and a review is two requests.
func TestTheClientBoundsNoReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &answers{}
		g, err := New(&rest.Config{Host: "http://api"}, &http.Client{Transport: api})
		if err != nil {
			t.Fatal(err)
		}
		get, began := asks(t, g), time.Now()
		for n := range 2 * perSecond {
			if code := get(fmt.Sprint("reader", n)); code != http.StatusOK {
				t.Errorf("token %d: %d", n, code)
			}
		}
		if waited := time.Since(began); waited != 0 || api.posts != 4*perSecond {
			t.Errorf("%d requests took %v", api.posts, waited)
		}
	})
}
