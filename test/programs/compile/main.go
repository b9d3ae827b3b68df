// Command compile builds every C program of a folder into an eBPF object of its
// name, through bpf2go.
//
// It owns how objects are compiled, so that they come out byte for byte equal
// on every machine with the same clang; it loads nothing. bpf2go's Go files are
// dropped: the project reads objects as its users do, as ELF files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

// clang is the compiler the committed objects are built with; another version
// gives other bytes.
const clang = "clang-19"

// withoutBTF ends the names of the objects whose type information is removed.
const withoutBTF = "_nobtf"

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: compile SOURCES OBJECTS: builds SOURCES/*.c into OBJECTS/*.o")
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := folder(ctx, flag.Arg(0), flag.Arg(1))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

// folder builds every C file of one folder into another.
func folder(ctx context.Context, sources, objects string) error {
	if _, err := exec.LookPath(clang); err != nil {
		return fmt.Errorf("find %s: %w; on Debian: apt-get install clang-19 llvm-19 libbpf-dev linux-libc-dev", clang, err)
	}
	files, err := filepath.Glob(filepath.Join(sources, "*.c"))
	if err != nil {
		return fmt.Errorf("list %s: %w", sources, err)
	}
	if len(files) == 0 {
		return fmt.Errorf("list %s: no C file", sources)
	}
	var all error
	for _, file := range files {
		if err := object(ctx, file, objects); err != nil {
			all = errors.Join(all, fmt.Errorf("compile %s: %w", file, err))
		}
	}
	return all
}

// object builds one C file into the object of its name in folder objects.
func object(ctx context.Context, source, objects string) error {
	dir := filepath.Dir(source)
	stem := strings.TrimSuffix(filepath.Base(source), ".c")
	scratch, err := os.MkdirTemp("", "compile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	err = run(ctx, dir, "go", "tool", "bpf2go", "-cc", clang, "-target", "bpfel", "-no-global-types",
		"-go-package", "objects", "-output-dir", scratch, "-output-stem", "object", "-output-suffix", "",
		"object", filepath.Base(source), "--",
		"-O2", "-g", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
		"-idirafter", "/usr/include/"+triplet())
	if err != nil {
		return err
	}
	built := filepath.Join(scratch, "object_bpfel.o")
	if strings.HasSuffix(stem, withoutBTF) {
		if err := run(ctx, dir, "llvm-objcopy-19", "--remove-section=.BTF", "--remove-section=.BTF.ext",
			"--remove-section=.rel.BTF", "--remove-section=.rel.BTF.ext", built); err != nil {
			return err
		}
	}
	body, err := os.ReadFile(built)
	if err != nil {
		return fmt.Errorf("read object: %w", err)
	}
	return os.WriteFile(filepath.Join(objects, stem+".o"), body, 0o644)
}

// triplet is Debian's name of the folder with the machine's asm headers.
func triplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// run runs a command in dir and shows what it prints.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}
