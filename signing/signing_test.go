package signing_test

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

// counting is a real registry in this process that notes what it is asked.
type counting struct {
	host    string
	handler http.Handler

	mu       sync.Mutex
	requests []string
	// instead answers a request in the registry's place where it returns true.
	instead func(http.ResponseWriter, *http.Request) bool
}

func newRegistry(t *testing.T, referrers bool) *counting {
	t.Helper()
	c := &counting{handler: containerregistry.New(containerregistry.Logger(log.New(io.Discard, "", 0)), containerregistry.WithReferrersSupport(referrers))}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.host = strings.TrimPrefix(server.URL, "http://")
	return c
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests = append(c.requests, r.Method+" "+r.URL.Path)
	instead := c.instead
	c.mu.Unlock()
	if instead != nil && instead(w, r) {
		return
	}
	c.handler.ServeHTTP(w, r)
}

// asked returns the requests since the last time, and forgets them.
func (c *counting) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests := c.requests
	c.requests = nil
	return requests
}

func (c *counting) answer(instead func(http.ResponseWriter, *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instead = instead
}

func newClient(t *testing.T) *registry.Client {
	t.Helper()
	client, err := registry.NewClient(registry.Options{Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// pushed puts an image of its own into the registry and resolves it.
func pushed(t *testing.T, c *counting) image.Resolved { return pushedAs(t, c, "bpf/counter:v1") }

func pushedAs(t *testing.T, c *counting, tag string) image.Resolved {
	t.Helper()
	ref, err := name.ParseReference(c.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, randomImage(t)); err != nil {
		t.Fatal(err)
	}
	return resolved(t, ref.Name())
}

// laidOut puts an image of its own into a layout on disk and resolves it.
func laidOut(t *testing.T) image.Resolved {
	t.Helper()
	dir := t.TempDir()
	index, err := random.Index(64, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	path, err := layout.Write(dir, index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(randomImage(t)); err != nil {
		t.Fatal(err)
	}
	return resolved(t, "oci:"+dir)
}

func resolved(t *testing.T, reference string) image.Resolved {
	t.Helper()
	r, err := newClient(t).Resolve(t.Context(), reference)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// newKey makes a key and the signer it stands for. The key is plain: scrypt
// takes half a second.
func newKey(t *testing.T, signer string) (*sign.PrivateKey, v1alpha1.BpfSigner) {
	t.Helper()
	return parsedKey(t, signer, newECKey(t))
}

func parsedKey(t *testing.T, signer string, raw any) (*sign.PrivateKey, v1alpha1.BpfSigner) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	key, err := sign.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.Public()
	if err != nil {
		t.Fatal(err)
	}
	return key, keySigner(signer, public)
}

func keySigner(signer string, public []byte) v1alpha1.BpfSigner {
	return v1alpha1.BpfSigner{
		ObjectMeta: metav1.ObjectMeta{Name: signer},
		Spec:       v1alpha1.BpfSignerSpec{Key: &v1alpha1.KeySigner{PublicKey: string(public)}},
	}
}

func trustOf(t *testing.T, signers ...v1alpha1.BpfSigner) *signing.Trust {
	t.Helper()
	trust, err := signing.NewTrust(signers)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

func signed(t *testing.T, r image.Resolved, key *sign.PrivateKey, options sign.Options) {
	t.Helper()
	if err := sign.Image(t.Context(), newClient(t), r, key, options); err != nil {
		t.Fatal(err)
	}
}

func collected(t *testing.T, r image.Resolved) collect.Collected {
	t.Helper()
	c, err := collect.All(t.Context(), newClient(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func verify(t *testing.T, trust *signing.Trust, c collect.Collected) signing.Evidence {
	t.Helper()
	return verifyAt(t, trust, c, time.Now())
}

func verifyAt(t *testing.T, trust *signing.Trust, c collect.Collected, now time.Time) signing.Evidence {
	t.Helper()
	e, err := trust.Verify(t.Context(), c, now)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// places are where images and their signatures can be.
func places(t *testing.T) map[string]image.Resolved {
	return map[string]image.Resolved{
		"a registry with the referrers API":    pushed(t, newRegistry(t, true)),
		"a registry without the referrers API": pushed(t, newRegistry(t, false)),
		"an OCI layout on disk":                laidOut(t),
	}
}

func TestWhatSignWritesVerifyCounts(t *testing.T) {
	for where, r := range places(t) {
		t.Run(where, func(t *testing.T) {
			key, alice := newKey(t, "alice")
			_, bob := newKey(t, "bob")
			trust := trustOf(t, bob, alice)
			if e := verify(t, trust, collected(t, r)); len(e.Signatures) != 0 {
				t.Fatalf("an unsigned image has signatures: %v", e.Signatures)
			}
			signed(t, r, key, sign.Options{})
			signed(t, r, key, sign.Options{Bundle: true, Annotations: map[string]string{"env": "prod"}})
			c := collected(t, r)
			e := verify(t, trust, c)
			if len(e.Signatures) != 2 || len(e.Rejected) != 0 {
				t.Fatalf("got %+v", e)
			}
		})
	}
}
