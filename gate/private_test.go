package gate_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// locked lets nobody read one repository who shows no password.
type locked struct {
	*world
	repository string
}

func (l *locked) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" && r.Header.Get("Authorization") == "" && (r.URL.Path == "/v2/" || strings.Contains(r.URL.Path, l.repository)) {
		return &http.Response{
			StatusCode: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {`Basic realm="private"`}},
			Body: io.NopCloser(strings.NewReader("")), Request: r,
		}, nil
	}
	return l.world.RoundTrip(r)
}

// password is the like of a pull Secret.
type password struct{}

func (password) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "team-a", Password: "secret"}, nil
}

func TestWhatAPullSecretOpensIsNotHandedOn(t *testing.T) {
	w := newWorld(t)
	private, public := w.signed("xdp_pass"), w.signed("xdp_count")
	w.client = supply.Client(t, registry.Options{CacheDir: t.TempDir(), Transport: &locked{world: w, repository: "bpf/xdp-pass"}})
	shared, j := access.NewShared(w.client, access.SharedOptions{}), w.evaluator()
	evaluator := func(ref, program string, credentials ...access.Credential) {
		t.Helper()
		v, err := j.Evaluate(t.Context(), gate.Request{Application: app(ref, program, onEth0()), Reader: shared.Reader("team-a", nil, credentials...)})
		if err != nil || !v.Allowed() {
			t.Fatalf("%s: %v, %v", ref, rules(v), err)
		}
	}
	for range 2 {
		evaluator(private, "xdp_pass", access.Credential{Name: "Secret team-a/pull", Keychain: password{}})
	}
	if len(w.memory) != 0 {
		t.Errorf("%d entries are stored of an image that only a Secret opens", len(w.memory))
	}
	evaluator(public, "count_packets")
	if len(w.memory) != 1 {
		t.Errorf("%d entries are stored of an image that everybody may read", len(w.memory))
	}
}
