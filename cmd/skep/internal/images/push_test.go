package images

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing/sign"
	fixture "github.com/skep-dev/skep/test/fixture/images"
)

// signedPush is a push with a key to a repository, as the command line makes it.
func signedPush(t *testing.T, to string, more ...string) *PushFlags {
	t.Helper()
	private, _, err := sign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "skep.key")
	if err := os.WriteFile(key, private, 0o600); err != nil {
		t.Fatal(err)
	}
	f, cmd := &PushFlags{}, &cobra.Command{}
	f.Register(cmd)
	if err := cmd.ParseFlags(append(more, "--push", to, "--sign", "--key", key, "--cache", t.TempDir())); err != nil {
		t.Fatal(err)
	}
	return f
}

var origin = image.Origin{Source: "https://git.example.com/bpf.git", Revision: "main@sha1:0", Created: time.Unix(1, 0)}

// TestTheTagNeverNamesAnUnsignedArtifact has a controller follow the tag while the artifact is
// pushed.
func TestTheTagNeverNamesAnUnsignedArtifact(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		// signature begins the name of what is put when the artifact is signed.
		signature string
	}{
		"cosign's tag": {nil, "PUT /v2/bpf/definitions/manifests/sha256-"},
		"a bundle":     {[]string{"--bundle"}, "PUT /v2/bpf/definitions/manifests/sha256:"},
	} {
		t.Run(name, func(t *testing.T) {
			server := fixture.Real(t, registry.WithReferrersSupport(true))
			f := signedPush(t, "oci://"+server.Host+"/bpf/definitions:main", c.flags...)
			if _, err := f.Push(t.Context(), []byte("a: 1\n"), origin, nil); err != nil {
				t.Fatal(err)
			}
			var put []string
			for _, request := range server.Taken() {
				if strings.HasPrefix(request, "PUT ") && strings.Contains(request, "/manifests/") {
					put = append(put, request)
				}
			}
			last := len(put) - 1
			if last != 2 || put[last] != "PUT /v2/bpf/definitions/manifests/main" || !strings.HasPrefix(put[1], c.signature) {
				t.Errorf("manifests were put in the order %q", put)
			}
		})
	}
}

func TestWhatCannotBeSignedGetsNoTag(t *testing.T) {
	real := registry.New()
	server := fixture.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, ".sig") {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		real.ServeHTTP(w, r)
	}))
	f := signedPush(t, "oci://"+server.Host+"/bpf/definitions:main")
	if _, err := f.Push(t.Context(), []byte("a: 1\n"), origin, nil); err == nil || !strings.Contains(err.Error(), "push to oci://"+server.Host) {
		t.Errorf("push: %v", err)
	}
	if put := server.Taken(); slices.Contains(put, "PUT /v2/bpf/definitions/manifests/main") {
		t.Errorf("the registry was asked %q", put)
	}
}

func TestPushingEnds(t *testing.T) {
	server := fixture.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	to := "oci://" + server.Host + "/bpf/definitions:main"
	f := signedPush(t, to)
	f.reg.timeout = 100 * time.Millisecond
	_, err := f.Push(t.Context(), []byte("a: 1\n"), origin, nil)
	if err == nil || !strings.Contains(err.Error(), "pushing to "+to+" took longer than 100ms") {
		t.Errorf("push: %v", err)
	}
}
