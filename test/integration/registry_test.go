package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// debian starts Debian's own registry, which knows no referrers, and has what is
// pushed from now on go there.
func (c *cluster) debian() {
	t := c.t
	t.Helper()
	binary := need.Program(t, "docker-registry", "docker-registry")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Registry = listener.Addr().String()
	_ = listener.Close()
	config := filepath.Join(t.TempDir(), "config.yml")
	body := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n", t.TempDir(), c.Registry)
	if err := os.WriteFile(config, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(binary, "serve", config)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	c.until("the registry to answer", func() error {
		response, err := http.Get("http://" + c.Registry + "/v2/")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

func TestDebiansRegistryServes(t *testing.T) {
	c := newCluster(t)
	c.debian()
	c.control()
	c.create(c.Signer("team-a"))
	signed, digest := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	unsigned, _ := c.Push("stray:v1", append(programs.Object("tracepoint_count"), 0))
	app, stray := application("app", signed), application("stray", unsigned)
	c.create(app, stray)
	c.condition(app, v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed")
	c.condition(stray, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
	c.until("the application to be sealed", func() error {
		if p := c.opened(app); p == nil || p.ImageDigest != digest {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
	if c.opened(stray) != nil {
		t.Error("an unsigned image was sealed")
	}
}
