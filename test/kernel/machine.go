package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Result is what one test binary did in the machine.
type Result struct {
	// Code is its exit code.
	Code int
	// Output is what it printed.
	Output string
}

// Machine is what a virtual machine boots and runs.
type Machine struct {
	// Kernel is the kernel image.
	Kernel string
	// Init is the static program that runs the tests: package test/kernel/init.
	Init []byte
	// Only chooses tests as go test -run does; empty for all.
	Only string
	// Modules are kernel modules, by name, in the order of Load.
	Modules map[string][]byte
	// Load is the order in which modules are loaded.
	Load []string
	// Tests are static test binaries by name.
	Tests map[string][]byte
}

// Run boots the machine, runs every test binary and returns what they did. It
// emulates the processor, since not every machine can nest virtualisation, and
// its two processors in turns: with a thread for each, 6.1 locked up in two runs
// of three while a probe of sys_enter changed the kernel's own instructions.
func (m Machine) Run(ctx context.Context, log io.Writer) (map[string]Result, error) {
	dir, err := os.MkdirTemp("", "skep-vm")
	if err != nil {
		return nil, fmt.Errorf("boot kernel: %w", err)
	}
	defer os.RemoveAll(dir)
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, m.archive(), 0o600); err != nil {
		return nil, fmt.Errorf("boot kernel: %w", err)
	}
	var console bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-m", "1G", "-smp", "2",
		"-nographic", "-no-reboot", "-kernel", m.Kernel, "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 lsm=lockdown,bpf skep.run="+m.Only)
	cmd.Stdout = io.MultiWriter(&console, log)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run qemu: %w", errors.Join(err, ctx.Err()))
	}
	return parse(console.Bytes())
}

// archive is the initial file system.
func (m Machine) archive() []byte {
	var a archive
	a.add("init", m.Init, 0o755)
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp", "modules", "tests"} {
		a.dir(dir)
	}
	// The kernel opens it for init's output before anything is mounted.
	a.device("dev/console", 5, 1)
	for i, name := range m.Load {
		a.add(fmt.Sprintf("modules/%02d-%s.ko", i, name), m.Modules[name], 0o600)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tests)) {
		a.add("tests/"+name, m.Tests[name], 0o755)
	}
	return a.close()
}

// parse splits the console's text at the marks that init prints; the firmware
// may have left something in front of the first on its line. A machine that
// stopped in the middle has no last mark.
func parse(console []byte) (map[string]Result, error) {
	text := bytes.ReplaceAll(console, []byte("\r"), nil)
	mark := regexp.MustCompile(`(?m)SKEP-VM (begin|end) (\S+)(?: (\d+))?$`)
	results := map[string]Result{}
	var begun string
	var from int
	for _, at := range mark.FindAllSubmatchIndex(text, -1) {
		kind, name := string(text[at[2]:at[3]]), string(text[at[4]:at[5]])
		switch {
		case kind == "begin":
			begun, from = name, at[1]
		case name == begun && at[6] >= 0:
			code, err := strconv.Atoi(string(text[at[6]:at[7]]))
			if err != nil {
				return results, fmt.Errorf("read exit code of %s: %w", name, err)
			}
			results[name] = Result{Code: code, Output: string(bytes.TrimSpace(text[from:at[0]]))}
			begun = ""
		case name == "all":
			return results, nil
		}
	}
	if begun != "" {
		return results, fmt.Errorf("the machine stopped while it ran %s", begun)
	}
	return results, errors.New("the machine stopped before it ran all tests")
}
