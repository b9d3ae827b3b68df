// Package supply is the users' side for tests: a real registry in the process,
// images in it, and parties that sign them.
//
// It owns nothing of the product and decides nothing; what it pushes is what
// skep image and skep sign would push.
package supply

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/signing"
)

// Loopback allows every public registry and those of tests, which are at loopback.
func Loopback() []string { return []string{image.AnyPublic, "127.0.0.1:*", "localhost:*"} }

// Chain is a registry with parties that push to it and sign.
type Chain struct {
	// Registry is host:port.
	Registry string
	// Down makes the registry answer 503 while it is set.
	Down atomic.Bool
	// Requests counts what the registry was asked.
	Requests atomic.Int64

	t      testing.TB
	server *httptest.Server
	client *image.Client
	keys   map[string]*signing.PrivateKey
}

// New starts a registry that ends with the test.
func New(t testing.TB) *Chain {
	t.Helper()
	c := &Chain{t: t, keys: map[string]*signing.PrivateKey{}}
	real := registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Requests.Add(1)
		if c.Down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { c.server.Close() })
	c.Registry = strings.TrimPrefix(c.server.URL, "http://")
	var err error
	if c.client, err = image.NewClient(image.Options{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Kill ends the registry as a crash does: it refuses connections. The function it
// returns starts it again, with all that was pushed to it.
func (c *Chain) Kill() (again func()) {
	c.t.Helper()
	handler := c.server.Config.Handler
	c.server.CloseClientConnections()
	c.server.Close()
	return func() {
		c.t.Helper()
		l, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", c.Registry)
		if err != nil {
			c.t.Fatal(err)
		}
		c.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
		c.server.Start()
	}
}

// Signer is the BpfSigner of a party, which gets a key when first named. The
// key has no password: cosign's own format takes a second of scrypt.
func (c *Chain) Signer(name string) *v1alpha1.BpfSigner {
	c.t.Helper()
	public, err := c.key(name).Public()
	if err != nil {
		c.t.Fatal(err)
	}
	return &v1alpha1.BpfSigner{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfSigner},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BpfSignerSpec{Key: &v1alpha1.KeySigner{PublicKey: string(public)}},
	}
}

func (c *Chain) key(name string) *signing.PrivateKey {
	c.t.Helper()
	if key, ok := c.keys[name]; ok {
		return key
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	parsed, err := signing.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.keys[name] = parsed
	return parsed
}

// Push packs an object as repository:tag, has the parties sign it, and returns
// the reference and the digest.
func (c *Chain) Push(tag string, object []byte, signers ...string) (ref, digest string) {
	c.t.Helper()
	built, err := image.Build(object, image.BuildOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	ref = c.Registry + "/bpf/" + tag
	r, err := c.client.Push(c.t.Context(), ref, built)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range signers {
		if err := signing.Sign(c.t.Context(), c.client, r, c.key(name), signing.SignOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	return ref, r.Digest
}
