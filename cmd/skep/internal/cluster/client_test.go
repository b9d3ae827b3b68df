package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/cmd/internal/exit"
)

// asks are what commands ask a cluster.
func asks(ctx context.Context, c *Client) map[string]error {
	all := map[string]error{}
	_, all["status"] = c.Status(ctx, nil)
	_, all["explain"] = c.Explain(ctx, "web", "")
	_, all["find"] = c.Find(ctx, "show history of", "team-a/web")
	_, all["node"] = c.Node(ctx, "a")
	_, all["page"] = c.Fleet(ctx)
	return all
}

// TestCredentialsThatAreNotAcceptedAreNoMissingRight, and a client certificate that ended is named.
func TestCredentialsThatAreNotAcceptedAreNoMissingRight(t *testing.T) {
	f := installed(t)
	f.unknown = true
	c := f.client(t, false)
	const want = "cluster kind-a, context admin@a does not accept your credentials"
	for what, err := range asks(t.Context(), c) {
		if err == nil || !strings.Contains(err.Error(), want) || IsForbidden(err) || strings.Contains(err.Error(), "ended at") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
	for end, ended := range map[time.Duration]bool{-time.Hour: true, time.Hour: false} {
		then := time.Now().Add(end)
		c.config.CertData, c.config.KeyData = certificate(t, then), key
		want := "the client certificate of the kubeconfig ended at " + then.UTC().Format(time.RFC3339)
		if _, err := c.Status(t.Context(), nil); err == nil || strings.Contains(err.Error(), want) != ended {
			t.Errorf("%s: %v", end, err)
		}
	}
}

// TestAClusterThatCannotBeReachedIsNamed: one that refuses, and one that accepts connections and says nothing.
func TestAClusterThatCannotBeReachedIsNamed(t *testing.T) {
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for want, config := range map[string]*rest.Config{
		"cannot be reached at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused": {Host: "https://127.0.0.1:1"},
		"did not answer in time at http://" + silent.Addr().String() + ": ": {
			Host: "http://" + silent.Addr().String(), Timeout: 50 * time.Millisecond},
	} {
		c, err := open(config, "cluster kind-a, context admin@a", "team-a", false, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for what, err := range asks(t.Context(), c) {
			if want := c.Place + " " + want; err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), c.Place) > 1 {
				t.Errorf("%s: %v, want %q once", what, err, want)
			}
		}
	}
}

// TestAFaultIsNotAskedForTwice: each wait for a cluster that does not answer takes half a minute.
func TestAFaultIsNotAskedForTwice(t *testing.T) {
	f := installed(t)
	f.unknown = true
	if _, err := f.client(t, false).Find(t.Context(), "explain", "web"); err == nil || len(f.requests) != 1 {
		t.Errorf("%v, after requests %q", err, f.requests)
	}
}

// TestANameThatIsEmptyIsNoApplication: without a name, an API server answers with the list.
func TestANameThatIsEmptyIsNoApplication(t *testing.T) {
	f := installed(t)
	for _, name := range []string{"", "team-a/", "cbpfapp/", "bpfapp/", "/"} {
		a, err := f.client(t, false).Find(t.Context(), "explain", name)
		if code, _ := exit.Of(err, 0); code != exit.Denied {
			t.Errorf("%q is %+v, %v, want that there is none", name, a.Identity, err)
		}
	}
}

// TestAnAPIThatIsAwayIsNotOneThatSaysWhyItDoesNotAnswer: of what the controller itself says, kubectl get apiservice knows nothing.
func TestAnAPIThatIsAwayIsNotOneThatSaysWhyItDoesNotAnswer(t *testing.T) {
	const looksThere = "kubectl get apiservice v1alpha1.view.skep.dev says why"
	for says, isAway := range map[string]bool{"": true, "this is not known as a request of kube-apiserver": false} {
		f := installed(t)
		f.away = &says
		_, err := f.client(t, false).Node(t.Context(), "a")
		if err == nil || strings.Contains(err.Error(), looksThere) != isAway || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}
