package integration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// served is a controller's mirror as agents see it.
type served struct {
	url  string
	pool *x509.CertPool
	// authority is the pool in PEM. The certificate is good for example.com.
	authority []byte
}

// serve is control with a mirror; cache is its folder.
func (c *cluster) serve(cache string, change ...func(*controller.Options)) (served, func()) {
	c.t.Helper()
	// httptest's certificate is good for 127.0.0.1.
	borrowed := httptest.NewUnstartedServer(nil)
	borrowed.StartTLS()
	certificate := borrowed.TLS.Certificates[0]
	pool := x509.NewCertPool()
	pool.AddCert(borrowed.Certificate())
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: borrowed.Certificate().Raw})
	borrowed.Close()
	listener, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	stop := c.control(append(change, func(o *controller.Options) {
		o.Cache = cache
		o.Mirror.Listener = listener
		o.Mirror.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }
	})...)
	return served{url: "https://" + listener.Addr().String(), pool: pool, authority: authority}, stop
}

// get asks for an object with a token.
func (s served) get(t *testing.T, digest, token string) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/objects/"+digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.pool, MinVersion: tls.VersionTLS13}}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body
}

// token is a service account's, for an audience.
func (c *cluster) token(account, audience string) string {
	c.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
	if err := c.Create(c.t.Context(), sa); err == nil {
		c.t.Cleanup(func() { _ = c.Delete(c.t.Context(), sa) })
	}
	return c.tokenOf(sa, authenticationv1.TokenRequestSpec{Audiences: audiences(audience)})
}

// audiences lists an audience, unless it is the API server's own.
func audiences(audience string) []string {
	if audience == "" {
		return nil
	}
	return []string{audience}
}

// tokenOn is a token of the agent on a node, which the API server names in it.
func (c *cluster) tokenOn(node string) string {
	c.t.Helper()
	pod := c.podOf("skep-agent", node, nil)
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "skep-agent"}}
	return c.tokenOf(sa, authenticationv1.TokenRequestSpec{Audiences: []string{mirror.Audience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}})
}

func (c *cluster) tokenOf(sa *corev1.ServiceAccount, spec authenticationv1.TokenRequestSpec) string {
	c.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: spec}
	if err := c.SubResource("token").Create(c.t.Context(), sa, request); err != nil {
		c.t.Fatal(err)
	}
	return request.Status.Token
}

func TestTheMirrorServesAgentsWhatIsLive(t *testing.T) {
	c := newCluster(t)
	cache := t.TempDir()
	served, _ := c.serve(cache)
	c.create(c.Signer("team-a"))
	object := programs.Object("tracepoint_count")
	app := c.loads("app", "one")
	digest := c.opened(app).ObjectDigest
	agent := c.token("skep-agent", mirror.Audience)

	for name, r := range map[string]struct {
		digest, token string
		status        int
	}{
		"an agent":                       {digest, agent, http.StatusOK},
		"nobody":                         {digest, "", http.StatusUnauthorized},
		"a token that is none":           {digest, "x", http.StatusUnauthorized},
		"a token of another audience":    {digest, c.token("skep-agent", ""), http.StatusUnauthorized},
		"another service account":        {digest, c.token("other", mirror.Audience), http.StatusForbidden},
		"an object that no intent names": {"sha256:" + strings.Repeat("0", 64), agent, http.StatusNotFound},
		"no digest":                      {"etc", agent, http.StatusNotFound},
	} {
		status, body := served.get(t, r.digest, r.token)
		if status != r.status || (status == http.StatusOK) != bytes.Equal(body, object) {
			t.Errorf("%s: %d, %d bytes, want %d", name, status, len(body), r.status)
		}
	}

	// A cache that was lost is filled again from what all replicas know, and else by
	// the registry; one out of reach is said to be for now.
	known := c.image(app.Status.Digest)
	lose(t, cache)
	c.Down.Store(true)
	if status, body := served.get(t, digest, agent); status != http.StatusOK || !bytes.Equal(body, object) {
		t.Errorf("with the registry down: %d, %d bytes", status, len(body))
	}
	if err := c.Delete(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	lose(t, cache)
	c.until("the image to be known no more", func() error {
		if status, _ := served.get(t, digest, agent); status != http.StatusServiceUnavailable {
			lose(t, cache)
			return errStatus(status)
		}
		return nil
	})
	c.Down.Store(false)
	if status, body := served.get(t, digest, agent); status != http.StatusOK || !bytes.Equal(body, object) {
		t.Errorf("after the cache was lost: %d, %d bytes", status, len(body))
	}
	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	c.unloaded(app, "deleted")
	c.until("the object to be live no more", func() error {
		if status, _ := served.get(t, digest, agent); status != http.StatusNotFound {
			return errStatus(status)
		}
		return nil
	})
}

// lose removes every file of a cache.
func lose(t *testing.T, cache string) {
	t.Helper()
	lost := 0
	_ = filepath.WalkDir(cache, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && os.Remove(name) == nil {
			lost++
		}
		return nil
	})
	if lost == 0 {
		t.Fatal("there was no cache to lose")
	}
}

// errStatus is a status that was not expected.
type errStatus int

func (e errStatus) Error() string { return http.StatusText(int(e)) }

func TestTheMirrorAsksOnceAboutATokenThatIsShownAgainAndAgain(t *testing.T) {
	c := newCluster(t)
	var asked traffic
	served, _ := c.serve(t.TempDir(), func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(asked.wrap)
	})
	digest := "sha256:" + strings.Repeat("0", 64)
	good := c.token("skep-agent", mirror.Audience)
	for token, want := range map[string]int{"junk": http.StatusUnauthorized, good: http.StatusNotFound} {
		served.get(t, digest, token)
		before := asked.spent().Writes
		for range 100 {
			if status, _ := served.get(t, digest, token); status != want {
				t.Fatalf("status %d, want %d", status, want)
			}
		}
		// The controller's own writes, such as its leases, are few.
		if n := asked.spent().Writes - before; n > 20 {
			t.Errorf("%d writes to the API server for 100 requests with one token", n)
		}
	}
}
