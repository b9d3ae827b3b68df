// Package containerd says where tests have a containerd 2 from: Debian's is 1.6, which has neither
// events of containers nor NRI. It starts nothing.
package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/skep-dev/skep/test/harness/cached"
)

// version is that of its Go module.
const version = "v2.4.2"

func path() (string, error) { return cached.Path("containerd-" + version) }

// Folder is where containerd, its shim and ctr are. It fails with
// cached.ErrNotBuilt.
func Folder() (string, error) {
	dir, err := path()
	if err != nil {
		return "", err
	}
	if dir, err = cached.Folder(dir); err != nil {
		return "", fmt.Errorf("find containerd 2, which make containerd builds in minutes: %w", err)
	}
	return dir, nil
}

// Build returns Folder, and builds them where this machine has none yet.
func Build(ctx context.Context) (string, error) {
	dir, err := path()
	if err != nil {
		return "", err
	}
	return dir, cached.Once(dir, func(aside string) error {
		args := []string{"install", "-ldflags", "-s -w"}
		for _, command := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
			args = append(args, "github.com/containerd/containerd/v2/cmd/"+command+"@"+version)
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOBIN="+aside)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build containerd: %w\n%s", err, out)
		}
		return nil
	})
}
