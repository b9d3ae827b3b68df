// Command gather puts objects that nobody here wrote into a folder, for the test of package
// corpus: the test data of the library cilium/ebpf, from its module, and the programs of
// Debian's xdp-tools, from the machine's package sources.
//
// What it does not get is left out, and it says so. It changes nothing on the machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gather FOLDER")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := gather(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gather:", err)
		os.Exit(1)
	}
}

// gather fills the folder anew.
func gather(ctx context.Context, folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	module, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/ebpf")
	if err != nil {
		return err
	}
	if err := take(module, filepath.Join(folder, "cilium-ebpf")); err != nil {
		return err
	}
	if err := packages(ctx, filepath.Join(folder, "xdp-tools"), "xdp-tools", "libxdp1"); err != nil {
		fmt.Fprintf(os.Stderr, "*** NO XDP-TOOLS: the objects of Debian's package are LEFT OUT: %v ***\n", err)
	}
	return nil
}

// packages takes the objects of Debian packages.
func packages(ctx context.Context, folder string, names ...string) error {
	scratch, err := os.MkdirTemp("", "gather")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if _, err := output(ctx, scratch, "apt-get", append([]string{"download"}, names...)...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(scratch, "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := output(ctx, scratch, "dpkg", "-x", file, "tree"); err != nil {
			return err
		}
	}
	return take(filepath.Join(scratch, "tree"), folder)
}

// take copies the objects below a folder that are little-endian, or do not say which. Their
// names tell where they were.
func take(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !isObject(path) {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, strings.ReplaceAll(name, string(filepath.Separator), "-")), body, 0o644)
	})
}

func isObject(path string) bool {
	ext := filepath.Ext(path)
	name := strings.TrimSuffix(path, ext)
	return (ext == ".elf" || ext == ".o") && !strings.HasSuffix(name, "-eb") && !strings.HasSuffix(name, "_bpfeb")
}

// output runs a program of the machine and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
