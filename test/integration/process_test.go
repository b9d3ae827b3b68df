package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
)

// process is skep-controller as it runs in a Pod. What it asks of the API server
// goes past the benchmark, which counts it.
type process struct {
	t testing.TB
	traffic
	*exec.Cmd
	// stop ends it as a kubelet does.
	stop func()
	// said is what it wrote to stderr, to be read once it stopped.
	said *bytes.Buffer
}

// process starts a skep-controller that seals with the cluster's key.
func (c *cluster) process(binary string, flags ...string) *process {
	t, dir := c.t, c.t.TempDir()
	t.Helper()
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: sealing.SecretName}, Data: map[string][]byte{"sealing.key": c.key}}
	c.create(key)
	p := &process{t: t, said: &bytes.Buffer{}}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(&rest.Config{Host: p.counts(c.plane.Config)}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	// Whoever leads alone renews its lease for nobody, which no change asks for.
	p.Cmd = exec.Command(binary, append([]string{"--kubeconfig=" + kubeconfig, "--namespace=default", "--cache=" + filepath.Join(dir, "cache"),
		"--leader-elect=false", "--metrics-address=", "--health-address=", "--allowed-registry=" + strings.Join(supply.Loopback(), ",")}, flags...)...)
	p.Stderr = p.said
	if err := child.Start(p.Cmd); err != nil {
		t.Fatal(err)
	}
	p.stop = sync.OnceFunc(func() {
		if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait(), c.Delete(context.Background(), key)); err != nil {
			t.Errorf("skep-controller: %v\n%s", err, p.said.String())
		}
	})
	t.Cleanup(p.stop)
	return p
}

// counts serves the API server as an admin sees it, and counts what goes through.
func (p *process) counts(config *rest.Config) (url string) {
	to, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		p.t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: p.wrap(transport),
		// Who stops leaves watches behind, of which nobody needs to hear.
		ErrorLog: log.New(io.Discard, "", 0),
	})
	p.t.Cleanup(proxy.Close)
	return proxy.URL
}

// weighs reports the memory of the process.
func (p *process) weighs(b *testing.B) {
	m := command.MemoryOf(b, p.Process.Pid)
	b.ReportMetric(m.Resident, "controller-MB-resident")
	b.ReportMetric(m.Peak, "controller-MB-peak")
	b.ReportMetric(m.Own, "controller-MB-own")
}
