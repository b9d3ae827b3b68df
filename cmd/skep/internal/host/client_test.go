package host

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/nodemode"
)

// TestASkepRunThatHangsIsSaidToDoSo: it accepts connections, as a stopped process does, and never answers.
func TestASkepRunThatHangsIsSaidToDoSo(t *testing.T) {
	c := Client{State: t.TempDir(), patience: 50 * time.Millisecond}
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(c.State, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	const want = "skep run did not answer within 50ms"
	if _, err := c.Status(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
