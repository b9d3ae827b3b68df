package gate_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// trickling is the registry under another address, which answers requests whose
// path has the part in it one byte at a time while slow is set, and a client of it
// whose requests end with their context.
func (w *world) trickling(part string, slowly *atomic.Bool) (address string, client *registry.Client) {
	w.t.Helper()
	inner := w.server.Config.Handler
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !slowly.Load() || !strings.Contains(r.URL.Path, part) {
			inner.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
		rw.Header().Set("Content-Length", "1000000")
		for beat := time.NewTicker(50 * time.Millisecond); ; {
			_, _ = rw.Write([]byte(" "))
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-r.Context().Done():
				beat.Stop()
				return
			case <-beat.C:
			}
		}
	}))
	w.t.Cleanup(slow.Close)
	return strings.TrimPrefix(slow.URL, "http://"), supply.Client(w.t, registry.Options{CacheDir: w.t.TempDir()})
}

// collects is a deadline that a busy machine meets, and that a test can wait for.
const collects = 10 * time.Second

// TestAnEvaluationEndsByItsDeadline has a registry trickle, which no limit on
// silence ends.
func TestAnEvaluationEndsByItsDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		part             string
		timeout, collect time.Duration
		want             []string
	}{
		"the bytecode":   {"/blobs/", time.Second, 0, []string{"deadline of 1s", "registry "}},
		"the signatures": {"/referrers/", 0, time.Second, []string{"did not send all signatures within 1s", "registry "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.signed("xdp_count")
			_, path, _ := strings.Cut(ref, "/")
			var slowly atomic.Bool
			slowly.Store(true)
			slow, client := w.trickling(c.part, &slowly)
			j, err := gate.New(gate.Options{
				Images: client, Trust: w.trust(w.signers...), Policies: w.policy(wantsSomebody), Timeout: c.timeout, CollectTimeout: c.collect,
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = j.Evaluate(t.Context(), gate.Request{Application: app(slow+"/"+path, "count_packets", onEth0())})
			if !errors.Is(err, image.ErrUnavailable) {
				t.Fatalf("Judge = %v, want ErrUnavailable", err)
			}
			for _, part := range append(c.want, slow) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
		})
	}
}

// TestOneImageThatIsSlowToCollectIsNoRegistryOutOfReach has whoever may push to one
// repository make its signatures take long.
func TestOneImageThatIsSlowToCollectIsNoRegistryOutOfReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, slowPath, _ := strings.Cut(w.signed("xdp_count"), "/")
	_, otherPath, _ := strings.Cut(w.signed("xdp_pass"), "/")
	repository, _, _ := strings.Cut(slowPath, ":")
	var slowly atomic.Bool
	registry, client := w.trickling("/"+repository+"/referrers/", &slowly)
	j, err := gate.New(gate.Options{Images: client, Trust: w.trust(w.signers...), Policies: w.policy(wantsSomebody),
		Now: func() time.Time { return w.now }, CollectTimeout: collects})
	if err != nil {
		t.Fatal(err)
	}
	evaluator := func(path, program string) gate.Verdict {
		t.Helper()
		return mustEvaluate(t, j, app(registry+"/"+path, program, onEth0()))
	}
	evaluator(slowPath, "count_packets")
	evaluator(otherPath, "xdp_pass")
	w.now = w.now.Add(time.Hour)
	slowly.Store(true)
	if v := evaluator(slowPath, "count_packets"); v.Stale().IsZero() {
		t.Error("the slow one: what was collected an hour ago is not used")
	}
	if v := evaluator(otherPath, "xdp_pass"); !v.Stale().IsZero() {
		t.Error("another image of the same registry is not asked for")
	}
}

// TestARegistryTooSlowForSignaturesIsOutOfReach uses what was collected before.
func TestARegistryTooSlowForSignaturesIsOutOfReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.signed("xdp_count")
	_, path, _ := strings.Cut(ref, "/")
	var slowly atomic.Bool
	slow, client := w.trickling("", &slowly)
	j, err := gate.New(gate.Options{Images: client, Trust: w.trust(w.signers...), Policies: w.policy(wantsSomebody),
		Now: func() time.Time { return w.now }, CollectTimeout: collects})
	if err != nil {
		t.Fatal(err)
	}
	req := gate.Request{Application: app(slow+"/"+path, "count_packets", onEth0())}
	v := mustEvaluate(t, j, req.Application)
	req.Digest = v.Image().Digest
	w.now = w.now.Add(time.Hour)
	slowly.Store(true)
	if v, err := j.Evaluate(registry.CacheOnly(t.Context()), req); !errors.Is(err, image.ErrNotAsked) {
		t.Errorf("without a registry: allowed %v, %v; want ErrNotAsked", v.Allowed(), err)
	}
	v, err = j.Evaluate(t.Context(), req)
	if err != nil || !v.Allowed() || v.Stale().IsZero() {
		t.Errorf("allowed %v, stale since %v, %v; want what was collected an hour ago", v.Allowed(), v.Stale(), err)
	}
	if v, err := j.Evaluate(registry.CacheOnly(t.Context()), req); err != nil || !v.Allowed() {
		t.Errorf("while the registry is out of reach: allowed %v, %v", v.Allowed(), err)
	}
}
