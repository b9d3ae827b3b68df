package admission

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestAPathIsCalledWhenEveryReplicaServesIt goes through a renewal: the API
// server calls no path that a replica may not serve yet, and none that is served no
// more.
func TestAPathIsCalledWhenEveryReplicaServesIt(t *testing.T) {
	before, after := newPath(), newPath()
	stored := mustIssue(t, start, names, nil)
	stored[keyPaths] = joinPaths(after, []string{before})
	p, err := parse(stored)
	if err != nil {
		t.Fatal(err)
	}
	now := start
	c := &Certificates{Now: func() time.Time { return now }}
	mux := http.NewServeMux()
	mux.Handle(prefixValidate+"{path}", c.told(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	answers := func(path string) int {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, http.NoBody))
		return answer.Code
	}
	for _, step := range []struct {
		after                 time.Duration
		called, want, dropped string
	}{
		{0, before, before, ""},
		{0, "", before, ""},
		{0, strings.Repeat("0", 64), before, ""},
		{overlap, before, after, ""},
		// A replica whose clock is behind leaves it so.
		{overlap - time.Second, after, after, ""},
		{2 * overlap, after, after, before},
	} {
		now = start.Add(step.after)
		c.show(p)
		path, url := prefixValidate+step.called, "https://skep.example:1234"+prefixValidate+step.called
		for _, config := range []*admissionregistrationv1.WebhookClientConfig{
			{Service: &admissionregistrationv1.ServiceReference{Path: &path}}, {URL: &url},
		} {
			if _, err := point(config, prefixValidate, p.served(now), p.called(now)); err != nil {
				t.Fatal(err)
			}
			var called string
			if config.Service != nil {
				called = *config.Service.Path
			} else {
				called = strings.TrimPrefix(*config.URL, "https://skep.example:1234")
			}
			if called != prefixValidate+step.want || answers(called) != http.StatusOK {
				t.Errorf("after %s: %s is called, and answered with %d, want %s", step.after, called, answers(called), step.want)
			}
		}
		for _, path := range []string{"/", "/validate", "/validate/", prefixValidate + strings.Repeat("0", 64), prefixValidate + step.dropped} {
			if code := answers(path); code != http.StatusNotFound {
				t.Errorf("after %s: %s is answered with %d", step.after, path, code)
			}
		}
	}
}

// TestThePathChangesEveryHour goes through changes: whoever reads the path in an
// error of the API server's has it for an hour and two overlaps at most, and the path
// that is called is always one that is served.
func TestThePathChangesEveryHour(t *testing.T) {
	now, data := start, mustIssue(t, start, names, nil)
	stored := func() pair {
		t.Helper()
		p, err := parse(data)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// A Secret of the version before: its path is served alone, and stays so at first.
	now = now.Add(30 * 24 * time.Hour)
	data[keyPaths] = joinPaths(stored().paths[0], []string{newPath()})
	first := stored().paths[0]
	if !turned(data, stored(), now) || turned(data, stored(), now) {
		t.Fatal("the time of the path is not written once")
	}
	if p := stored(); len(p.served(now)) != 1 || p.served(now)[0] != first || !p.called(now) {
		t.Errorf("served %v, called: %v", p.served(now), p.called(now))
	}
	path := prefixValidate + first
	config := &admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &path}}
	seen, leaked := map[string]time.Time{first: now}, map[string]time.Time{}
	for end := now.Add(5 * time.Hour); now.Before(end); now = stored().next(now, true) {
		turned(data, stored(), now)
		p := stored()
		if _, err := point(config, prefixValidate, p.served(now), p.called(now)); err != nil {
			t.Fatal(err)
		}
		called := strings.TrimPrefix(*config.Service.Path, prefixValidate)
		if !slices.Contains(p.served(now), called) {
			t.Errorf("%s is called and not served", called)
		}
		leaked[called] = now
		for _, path := range p.served(now) {
			if _, known := seen[path]; !known {
				seen[path] = now
			}
			if at, was := leaked[path]; was && now.Sub(at) > pathAge+2*overlap {
				t.Errorf("what leaked %v ago is served", now.Sub(at))
			}
		}
	}
	if len(seen) < 5 {
		t.Errorf("%d paths in five hours", len(seen))
	}
	if wait := stored().next(now, false); wait.Before(now.Add(2*overlap)) && wait.Before(stored().since().Add(2*overlap)) && !wait.After(now) {
		t.Errorf("a replica that does not lead looks again at %v", wait)
	}
}

func TestPathsAreRandomAndFew(t *testing.T) {
	first := newPath()
	if second := newPath(); first == second || !wholePath.MatchString(first) {
		t.Errorf("a path can be guessed: %s, %s", first, second)
	}
	many := []string{first}
	for range 5 {
		var err error
		if many, err = parsePaths(joinPaths(newPath(), many)); err != nil {
			t.Fatal(err)
		}
	}
	if len(many) != maxPaths {
		t.Errorf("%d paths are served, of at most %d", len(many), maxPaths)
	}
	if again, err := parsePaths(joinPaths(first, []string{first, first})); err != nil || len(again) != 1 {
		t.Errorf("one path stands %d times (%v)", len(again), err)
	}
}
