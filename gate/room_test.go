package gate_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// heldUp is a registry that says nothing of signatures in one repository until
// it is let.
type heldUp struct {
	*world
	repository string
	asked, let chan struct{}
}

func (h *heldUp) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, h.repository+"/referrers/") {
		h.asked <- struct{}{}
		<-h.let
	}
	return h.world.RoundTrip(r)
}

func TestNoObjectIsOpenWhileARegistryIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	slow, quick := app(w.signed("xdp_pass"), "xdp_pass", onEth0()), app(w.signed("xdp_count"), "count_packets", onEth0())
	h := &heldUp{world: w, repository: "bpf/xdp-pass", asked: make(chan struct{}, 1), let: make(chan struct{})}
	w.client = supply.Client(t, registry.Options{CacheDir: t.TempDir(), Transport: h, Objects: 1})
	j := w.evaluator()
	evaluated := make(chan error)
	go func() {
		_, err := j.Evaluate(t.Context(), gate.Request{Application: slow})
		evaluated <- err
	}()
	<-h.asked
	if v := mustEvaluate(t, j, quick); !v.Allowed() {
		t.Errorf("denied: %v", rules(v))
	}
	close(h.let)
	if err := <-evaluated; err != nil {
		t.Error(err)
	}
	if !mustEvaluate(t, j, slow).Allowed() {
		t.Error("denied in the end")
	}
}

func TestAnObjectThatIsNoneIsReadOnce(t *testing.T) {
	w := newWorld(t)
	object := programs.Object("xdp_pass")[:64]
	built, err := image.Build(append(bytes.Clone(object), "nothing"...), image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ref := strings.TrimPrefix(w.server.URL, "http://") + "/bpf/none:v1"
	if _, err := w.client.Push(t.Context(), ref, built); err != nil {
		t.Fatal(err)
	}
	j, since := w.counted(t)
	for _, result := range []string{"miss", "hit"} {
		v := mustEvaluate(t, j, app(ref, "xdp_pass", onEth0()))
		if got := rules(v); len(got) != 1 || got[0] != "inspect/object" {
			t.Errorf("denied for %v", got)
		}
		if n := since()[`skep_evaluation_cache_lookups_total{cache="facts",result="`+result+`"}`]; n != 1 {
			t.Errorf("%v times a %s", n, result)
		}
	}
}
