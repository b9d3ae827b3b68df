package cached

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrNotBuilt is the error of a machine where nobody built the tools.
var ErrNotBuilt = errors.New("not built on this machine")

// Tools are the programs that the tool lines of a go.mod name.
type Tools struct {
	// Name is theirs together, in the name of their folder. Needed.
	Name string
	// Module is the folder of the go.mod. Needed.
	Module string
	// Variables are set by the linker, each as PACKAGE.NAME=VALUE.
	Variables []string
	// Renamed are the programs whose main package has another name: from, to.
	Renamed map[string]string
}

// path is one for every go.mod and release of Go.
func (t Tools) path() (string, error) {
	mod, err := os.ReadFile(filepath.Join(t.Module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("find modules of %s: %w", t.Name, err)
	}
	hash := sha256.Sum256(append(mod, runtime.Version()...))
	return Path(t.Name + "-" + hex.EncodeToString(hash[:6]))
}

// Folder is where they are. It fails with ErrNotBuilt.
func (t Tools) Folder() (string, error) {
	dir, err := t.path()
	if err != nil {
		return "", err
	}
	return Folder(dir)
}

// Folder returns a folder that Once has made. It fails with ErrNotBuilt.
func Folder(dir string) (string, error) {
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("find %s: %w", dir, ErrNotBuilt)
	}
	return dir, nil
}

// Build returns Folder. The first caller on a machine builds them, which takes minutes; others wait for it.
func (t Tools) Build(ctx context.Context) (string, error) {
	dir, err := t.path()
	if err != nil {
		return "", err
	}
	return dir, Once(dir, func(aside string) error { return t.build(ctx, aside) })
}

func (t Tools) build(ctx context.Context, aside string) error {
	flags := []string{"-s -w"}
	for _, v := range t.Variables {
		flags = append(flags, "-X "+v)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", aside+"/", "-ldflags", strings.Join(flags, " "), "tool")
	cmd.Dir = t.Module
	// Neither the race detector's cgo nor a caller's flags: one build for all.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", t.Name, err, out)
	}
	for from, to := range t.Renamed {
		if err := os.Rename(filepath.Join(aside, from), filepath.Join(aside, to)); err != nil {
			return err
		}
	}
	return nil
}
