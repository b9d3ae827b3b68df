// Command gather puts objects that nobody here wrote into a folder, for the test of package
// corpus: the test data of the library cilium/ebpf, from its module, and the programs of
// tools that Debian has, from the machine's package sources. Most tools have their objects
// inside of their binaries, as bpftool's skeletons do.
//
// What it does not get is left out, and it says so. It changes nothing on the machine.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

// debian are packages whose objects are gathered, by the folder that they come to.
var debian = map[string][]string{
	"xdp-tools":    {"libxdp1", "xdp-tools"},
	"libbpf-tools": {"libbpf-tools"},
	"pcp":          {"pcp"},
	"knot":         {"libknot13"},
}

// largest is the size in bytes of the largest file that is searched for objects.
const largest = 64 << 20

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
	if err := take(module, filepath.Join(folder, "cilium-ebpf"), whole); err != nil {
		return err
	}
	for _, source := range slices.Sorted(maps.Keys(debian)) {
		if err := packages(ctx, filepath.Join(folder, source), debian[source]...); err != nil {
			fmt.Fprintf(os.Stderr, "*** NO %s: the objects of Debian's package are LEFT OUT: %v ***\n", strings.ToUpper(source), err)
		}
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
	return take(filepath.Join(scratch, "tree"), folder, objects)
}

// take copies the objects below a folder, each once. Their names tell where they were.
// read lists those of a file.
func take(from, to string, read func(path string) ([][]byte, error)) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	taken := map[[sha256.Size]byte]bool{}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		found, err := read(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		name = strings.ReplaceAll(name, string(filepath.Separator), "-")
		for i, body := range found {
			digest, file := sha256.Sum256(body), name
			if taken[digest] {
				continue
			}
			taken[digest] = true
			if !isObject(path) {
				file = fmt.Sprintf("%s-%d.o", name, i)
			}
			if err := os.WriteFile(filepath.Join(to, file), body, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// whole is a file that is an object and is little-endian, or does not say which.
func whole(path string) ([][]byte, error) {
	if !isObject(path) {
		return nil, nil
	}
	body, err := os.ReadFile(path)
	return [][]byte{body}, err
}

// objects are a file that is an object, or those that a file has inside.
func objects(path string) ([][]byte, error) {
	if isObject(path) {
		return whole(path)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > largest {
		return nil, err
	}
	body, err := os.ReadFile(path)
	return inside(body), err
}

func isObject(path string) bool {
	ext := filepath.Ext(path)
	name := strings.TrimSuffix(path, ext)
	return (ext == ".elf" || ext == ".o") && !strings.HasSuffix(name, "-eb") && !strings.HasSuffix(name, "_bpfeb")
}

// inside lists the little-endian objects that lie in a file.
func inside(body []byte) [][]byte {
	var all [][]byte
	for {
		at := bytes.Index(body, []byte(elf.ELFMAG))
		if at < 0 {
			return all
		}
		body = body[at:]
		size := objectSize(body)
		if size > 0 {
			all = append(all, body[:size])
		}
		body = body[max(size, len(elf.ELFMAG)):]
	}
}

// objectSize is the size in bytes of the object that a file begins with, or 0 without one.
func objectSize(body []byte) int {
	f, err := elf.NewFile(bytes.NewReader(body))
	if err != nil || f.Machine != elf.EM_BPF || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return 0
	}
	var header elf.Header64
	if err := binary.Read(bytes.NewReader(body), f.ByteOrder, &header); err != nil {
		return 0
	}
	end := header.Shoff + uint64(header.Shentsize)*uint64(header.Shnum)
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS {
			end = max(end, s.Offset+s.FileSize)
		}
	}
	if end > uint64(len(body)) {
		return 0
	}
	return int(end)
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
