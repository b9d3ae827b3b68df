// Package helm runs the helm that tools.mod pins, for tests.
package helm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/skep-dev/skep/test/harness/module"
)

// binary is helm's, built once.
var binary = sync.OnceValues(func() (string, error) {
	cmd := exec.CommandContext(context.Background(), "go", "tool", "-modfile=tools.mod", "-n", "helm")
	cmd.Dir = module.Root()
	// One build for all, whatever the caller's flags.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		return "", fmt.Errorf("build helm: %w\n%s", err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
})

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
