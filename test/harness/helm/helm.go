// Package helm runs the helm that tools.mod pins, for tests.
package helm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/skep-dev/skep/test/harness/command"
)

// binary is Binary, looked for once.
var binary = sync.OnceValues(func() (string, error) { return Binary(context.Background()) })

// Binary is the path of helm, which is built where it is not yet.
func Binary(ctx context.Context) (string, error) {
	return command.Cached(ctx, "-modfile=tools.mod", "helm.sh/helm/v4/cmd/helm")
}

// Run runs helm with folders of its own, and returns what it wrote; the error holds what it
// complained of.
func Run(ctx context.Context, t testing.TB, args ...string) (string, error) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, complaint.String())
	}
	return out.String(), nil
}
