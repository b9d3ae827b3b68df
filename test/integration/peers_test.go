package integration

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// asking has a controller ask others for what its mirror lacks.
func (c *cluster) asking(replicas *atomic.Pointer[[]string]) func(*controller.Options) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(c.token("skep-controller", mirror.Audience)+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return func(o *controller.Options) {
		o.LeaderElection = true
		o.Mirror.TokenFile, o.Mirror.ServerName = file, "example.com"
		o.Mirror.Peers = func(context.Context) ([]string, error) { return *replicas.Load(), nil }
	}
}

func TestReplicasAskEachOther(t *testing.T) {
	c := newCluster(t)
	var replicas atomic.Pointer[[]string]
	replicas.Store(&[]string{})
	cacheA, cacheB := t.TempDir(), t.TempDir()
	a, stopA := c.serve(cacheA, c.asking(&replicas))
	if err := sealing.Publish(t.Context(), c.Client, "default", sealing.MirrorCA, a.authority); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Delete(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: sealing.ConfigMapName}})
	})
	c.create(c.Signer("team-a"))
	digest := c.opened(c.loads("app", "one")).ObjectDigest
	b, _ := c.serve(cacheB, c.asking(&replicas))
	// One that says yes to everything and sends something else.
	lies := atomic.Int32{}
	liar := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lies.Add(1)
		if r.Header.Get("Authorization") == "" {
			t.Error("a replica was asked without a token")
		}
		_, _ = w.Write([]byte("something else"))
	}))
	t.Cleanup(liar.Close)
	at := func(url string) string { return strings.TrimPrefix(url, "https://") }
	// The last lists itself, as the Service's endpoints do.
	replicas.Store(&[]string{at(liar.URL), at(a.url), at(b.url)})

	agent, object := c.token("skep-agent", mirror.Audience), programs.Object("tracepoint_count")
	c.Down.Store(true)
	c.until("the second replica to have what the first has", func() error {
		if status, body := b.get(t, digest, agent); status != http.StatusOK || !bytes.Equal(body, object) {
			return errStatus(status)
		}
		return nil
	})
	if lies.Load() == 0 {
		t.Error("the liar was not asked")
	}

	// A replica gets what is in the cache and nothing more: no question goes round,
	// and none reaches the registry.
	replica := c.token("skep-controller", mirror.Audience)
	if status, _ := a.get(t, digest, replica); status != http.StatusOK {
		t.Errorf("a replica that asks for what is there: %d", status)
	}
	lose(t, cacheA)
	lose(t, cacheB)
	c.Down.Store(false)
	lies.Store(0)
	asked := c.Requests.Load()
	if status, _ := a.get(t, digest, replica); status != http.StatusNotFound {
		t.Errorf("a replica that asks for what is not there: %d", status)
	}
	if n := c.Requests.Load() - asked; n != 0 || lies.Load() != 0 {
		t.Errorf("it went on to the registry %d times, to replicas %d times", n, lies.Load())
	}
	// With nobody left to ask, the registry is.
	stopA()
	if status, body := b.get(t, digest, agent); status != http.StatusOK || !bytes.Equal(body, object) {
		t.Errorf("from the registry: %d", status)
	}
}

func TestReplicasAreThoseReadyBehindTheService(t *testing.T) {
	c := newCluster(t)
	port, yes, no := int32(9444), true, false
	slice := func(name, service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
				{Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}},
			},
		}
	}
	mine, other := slice("skep-mirror-x", "skep-mirror"), slice("skep-webhook-x", "skep-webhook")
	c.create(mine, other)
	t.Cleanup(func() {
		_ = c.Delete(context.Background(), mine)
		_ = c.Delete(context.Background(), other)
	})
	got, err := mirror.Endpoints(c.Client, "default", "skep-mirror")(t.Context())
	if err != nil || strings.Join(got, " ") != "10.0.0.1:9444" {
		t.Errorf("%v, %v", got, err)
	}
}
