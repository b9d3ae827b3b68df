package nodemode

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate/evaluations"
)

// slowRegistry serves a registry under another address. What trickles matches is
// answered one byte at a time, without end.
type slowRegistry struct {
	address  string
	trickles atomic.Pointer[func(*http.Request) bool]
	// asksForToken has every request without a token sent to the token server.
	asksForToken atomic.Bool
	// open counts the answers that trickle now, ended those that were given up.
	open, ended atomic.Int64
}

func newSlowRegistry(t testing.TB, real http.Handler) *slowRegistry {
	t.Helper()
	s := &slowRegistry{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		match := s.trickles.Load()
		switch {
		case match != nil && (*match)(r):
			s.trickle(w, r)
		case s.asksForToken.Load() && r.URL.Path == "/v2/":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			real.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.address = strings.TrimPrefix(server.URL, "http://")
	return s
}

// trickle answers one byte a tenth of a second, until nobody listens.
func (s *slowRegistry) trickle(w http.ResponseWriter, r *http.Request) {
	s.open.Add(1)
	defer func() { s.open.Add(-1); s.ended.Add(1) }()
	w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	if strings.Contains(r.URL.Path, "/referrers/") {
		w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
	}
	w.Header().Set("Content-Length", "1000000")
	w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(100 * time.Millisecond)
	defer beat.Stop()
	for {
		if _, err := w.Write([]byte(" ")); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
		}
	}
}

// slowly has the requests trickle whose path has the part in it.
func (s *slowRegistry) slowly(part string) {
	match := func(r *http.Request) bool { return r.Method == http.MethodGet && strings.Contains(r.URL.Path, part) }
	s.trickles.Store(&match)
}

// eventually waits for a condition, generously.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// runs is the kernel's id of a program that a running host has; 0 where there is
// none.
func runs(h *Host, name string) uint32 {
	for _, a := range h.Status().Applications {
		if a.Name == name {
			return running(a)
		}
	}
	return 0
}

// slowParts are the parts of the paths of a registry's answers, one of which
// trickles.
var slowParts = map[string]string{
	"a manifest": "/manifests/sha256:", "a blob": "/blobs/", "signatures": "/manifests/sha256-", "referrers": "/referrers/", "a token": "/token",
}

// TestASlowRegistryHoldsUpNoOtherApplication has a registry answer one application
// byte by byte, while what decides about another one changes.
func TestASlowRegistryHoldsUpNoOtherApplication(t *testing.T) {
	for change, c := range map[string]struct {
		do   func(*stage)
		runs bool
		// hours later, the registry of the other application is to be asked anew.
		later time.Duration
	}{
		"its signer is revoked": {do: func(s *stage) {
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
		}},
		"its signer is revoked, long after it was asked who signed": {later: time.Hour, do: func(s *stage) {
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
		}},
		"its definition is deleted": {do: func(s *stage) { s.define("other", "") }},
		"a policy denies it":        {do: func(s *stage) { s.policy(denyAll, v1alpha1.RunningUnload) }},
	} {
		for part, path := range slowParts {
			t.Run(change+", while "+part+" trickles", func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				s.define("other", s.push(first, "other:v1", "team-a"))
				slow := strings.Replace(s.push(second, "slow:v1", "team-b"), s.registry, s.slow.address, 1)
				var ahead atomic.Int64
				h := s.open(func(o *Options) {
					o.Interval = 200 * time.Millisecond
					o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- h.Run(ctx, nil) }()
				defer func() { cancel(); <-done }()
				eventually(t, "the other application is loaded", func() bool { return runs(h, "other") != 0 })
				s.slow.asksForToken.Store(part == "a token")
				s.slow.slowly(path)
				s.define("slow", slow)
				eventually(t, "the registry is waited for", func() bool { return s.slow.open.Load() > 0 })
				ahead.Store(int64(c.later))
				c.do(s)
				eventually(t, "the other application is unloaded", func() bool { return runs(h, "other") == 0 })
				if s.slow.ended.Load() > 0 && s.slow.open.Load() == 0 {
					t.Error("it was unloaded only after the slow answer ended")
				}
			})
		}
	}
}

// TestASlowEvaluationEndsByItsDeadline has a registry send a byte now and then,
// which never ends the wait for the whole.
func TestASlowEvaluationEndsByItsDeadline(t *testing.T) {
	for part, path := range slowParts {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			ref := strings.Replace(s.push(first, "app:v1", "team-a"), s.registry, s.slow.address, 1)
			s.define("app", ref)
			s.slow.asksForToken.Store(part == "a token")
			s.slow.slowly(path)
			app := s.pass(s.open(func(o *Options) { o.EvaluationTimeout = 10 * time.Second }))["app"]
			for _, kind := range []string{v1alpha1.ConditionVerified, v1alpha1.ConditionAllowed, v1alpha1.ConditionReady} {
				c := app.Condition(kind)
				if c.Status != "Unknown" || !strings.Contains(c.Message, s.slow.address) || !strings.Contains(c.Message, "10s") {
					t.Errorf("%s is %s: %q; want Unknown, the registry and the deadline", kind, c.Status, c.Message)
				}
			}
			if s.slow.open.Load()+s.slow.ended.Load() == 0 {
				t.Error("nothing trickled")
			}
		})
	}
}

// TestAnUpdateThatWaitsForARegistryKeepsWhatRuns says what is waited for, and goes
// on once the registry answers.
func TestAnUpdateThatWaitsForARegistryKeepsWhatRuns(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	s.slow.slowly("/blobs/")
	s.define("app", strings.Replace(s.push(second, "app:v2", "team-a"), s.registry, s.slow.address, 1))
	h.Sync(t.Context())
	app := h.Status().Applications[0]
	if c := app.Condition(v1alpha1.ConditionAllowed); c.Reason != "Pending" || !strings.Contains(c.Message, "waiting for registry "+s.slow.address+" since ") {
		t.Errorf("while the registry is waited for, Allowed is %s: %s", c.Reason, c.Message)
	}
	if running(app) == 0 || running(app) != running(before) {
		t.Errorf("program %d became %d", running(before), running(app))
	}
	eventually(t, "the registry is waited for", func() bool { return s.slow.open.Load() > 0 })
	// A newer definition does not wait for the answer to the older one.
	s.define("app", s.push(second, "app:v3", "team-a"))
	after := s.pass(h)["app"]
	wantConditions(t, after, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionReady: yesPlease})
	if running(after) == running(before) {
		t.Error("the newer definition was not taken")
	}
}

// TestAHangingRegistryHoldsOnePlace defines more applications of a registry that
// hangs than there are places, and then one of another.
func TestAHangingRegistryHoldsOnePlace(t *testing.T) {
	s := newStage(t)
	slow := strings.Replace(s.push(first, "slow:v1", "team-a"), s.registry, s.slow.address, 1)
	s.slow.slowly("/blobs/")
	for i := range evaluations.MaxAtOnce + evaluations.MaxOfARegistry {
		s.define(fmt.Sprintf("slow-%d", i), slow)
	}
	h := s.open(func(o *Options) { o.Now = nil })
	h.evaluations.SlowAfter = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, nil) }()
	defer func() { cancel(); <-done }()
	eventually(t, "one request is left", func() bool { return s.slow.ended.Load() > 0 && s.slow.open.Load() == 1 })
	s.define("other", s.push(second, "other:v1", "team-a"))
	eventually(t, "the other application is loaded", func() bool { return runs(h, "other") != 0 })
	// One that gave way may be on its way still.
	eventually(t, "one request is left", func() bool { return s.slow.open.Load() == 1 })
}

// TestTouchingADefinitionKeepsNothingOfARevokedSigner has a registry answer byte by byte
// who signed what runs, and its author change what every question about it is made of.
func TestTouchingADefinitionKeepsNothingOfARevokedSigner(t *testing.T) {
	s := newStage(t)
	ref := strings.Replace(s.push(first, "app:v1", "team-a"), s.registry, s.slow.address, 1)
	s.define("app", ref)
	var ahead atomic.Int64
	h := s.open(func(o *Options) {
		o.Interval = 200 * time.Millisecond
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	h.evaluations.RevocationWaits = 10 * time.Second
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, nil) }()
	defer func() { cancel(); <-done }()
	eventually(t, "it is loaded", func() bool { return runs(h, "app") != 0 })
	s.slow.slowly("/referrers/")
	// What was collected before counts no more.
	ahead.Store(int64(25 * time.Hour))
	s.signers["team-a"].Spec.Revoked = true
	s.writeSigners()
	eventually(t, "the registry is waited for", func() bool { return s.slow.open.Load() > 0 })
	touches := 0
	eventually(t, "it is unloaded", func() bool {
		touches++
		touched := strings.Replace(string(s.definition("app", ref)), "metadata:\n", fmt.Sprintf("metadata:\n  annotations: {touched: \"%d\"}\n", touches), 1)
		s.write(filepath.Join(s.defs, "app.yaml"), []byte(touched))
		<-time.After(100 * time.Millisecond)
		return runs(h, "app") == 0
	})
}
