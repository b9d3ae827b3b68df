package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tree is an unpacked kernel package.
type Tree struct {
	// Dir holds boot/ and lib/modules/ or usr/lib/modules/.
	Dir string
	// Package is the Debian package it came from.
	Package string
}

// ErrNoPackage says that neither the cache nor the machine's package sources have a
// kernel of the series.
var ErrNoPackage = errors.New("no such cloud kernel in the cache or the machine's package sources; run apt-get update, or add the backports of Debian")

// Fetch unpacks Debian's newest cloud kernel of a series, such as 6.1, below a
// cache directory, and downloads it if it is not there yet.
func Fetch(ctx context.Context, series, cache string) (Tree, error) {
	names, err := output(ctx, "", "apt-cache", "search", "--names-only", `^linux-image-`+regexp.QuoteMeta(series)+`[.].*cloud-amd64$`)
	if err != nil {
		return Tree{}, err
	}
	name := newest(series, names)
	if name == "" {
		name = newest(series, cached(series, cache))
	}
	if name == "" {
		return Tree{}, fmt.Errorf("find kernel %s: %w", series, ErrNoPackage)
	}
	tree := Tree{Dir: filepath.Join(cache, name), Package: name}
	if _, err := os.Stat(tree.Dir); err == nil {
		return tree, nil
	}
	scratch, err := os.MkdirTemp(cache, "fetch")
	if err != nil {
		return Tree{}, fmt.Errorf("fetch %s: %w", name, err)
	}
	defer os.RemoveAll(scratch)
	if _, err := output(ctx, scratch, "apt-get", "download", name); err != nil {
		return Tree{}, err
	}
	debs, err := filepath.Glob(filepath.Join(scratch, "*.deb"))
	if err != nil || len(debs) != 1 {
		return Tree{}, errors.Join(fmt.Errorf("fetch %s: got %d files", name, len(debs)), err)
	}
	aside := filepath.Join(scratch, "tree")
	if _, err := output(ctx, scratch, "dpkg", "-x", debs[0], aside); err != nil {
		return Tree{}, err
	}
	if err := os.Rename(aside, tree.Dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return Tree{}, fmt.Errorf("unpack %s: %w", name, err)
	}
	return tree, nil
}

// cached lists the packages of a series in the cache as apt-cache would.
func cached(series, cache string) string {
	dirs, _ := filepath.Glob(filepath.Join(cache, "linux-image-"+series+".*cloud-amd64"))
	var lines strings.Builder
	for _, dir := range dirs {
		lines.WriteString(filepath.Base(dir) + " - unpacked\n")
	}
	return lines.String()
}

// newest picks the package with the highest version out of apt-cache's lines.
// Meta packages have no version of their own and are passed over.
func newest(series, lines string) string {
	var names []string
	for line := range strings.Lines(lines) {
		if name, _, ok := strings.Cut(line, " - "); ok && len(version(name)) > strings.Count(series, ".")+1 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.MaxFunc(names, func(a, b string) int { return slices.Compare(version(a), version(b)) })
}

// version is every number in a package's name, up to the flavour.
func version(name string) []int {
	var out []int
	name, _, _ = strings.Cut(name, "-cloud")
	for _, digits := range regexp.MustCompile(`\d+`).FindAllString(name, -1) {
		n, err := strconv.Atoi(digits)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// Release is the kernel's name for itself, as uname -r prints it.
func (t Tree) Release() string { return strings.TrimPrefix(t.Package, "linux-image-") }

// Image is the kernel to boot.
func (t Tree) Image() (string, error) {
	found, err := filepath.Glob(filepath.Join(t.Dir, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", errors.Join(fmt.Errorf("find kernel image of %s: got %d files", t.Package, len(found)), err)
	}
	return found[0], nil
}

// Module returns a module of the kernel, decompressed, or os.ErrNotExist where
// it is built in or left out.
func (t Tree) Module(ctx context.Context, name string) ([]byte, error) {
	var found string
	err := filepath.WalkDir(t.Dir, func(path string, _ os.DirEntry, err error) error {
		if base := filepath.Base(path); err == nil && (base == name+".ko" || base == name+".ko.xz") {
			found = path
		}
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("find module %s of %s: %w", name, t.Package, err)
	case found == "":
		return nil, fmt.Errorf("find module %s of %s: %w", name, t.Package, os.ErrNotExist)
	case strings.HasSuffix(found, ".xz"):
		out, err := output(ctx, "", "xz", "-dc", found)
		return []byte(out), err
	}
	return os.ReadFile(found)
}

// output runs a program of the machine and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
