package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	// Init is the static program that runs the tests: package test/kernel/init. Without it, one of Files or Links is init.
	Init []byte
	// Modules are kernel modules, by name, in the order of Load.
	Modules map[string][]byte
	// Load is the order in which modules are loaded.
	Load []string
	// Tests are static test binaries by name.
	Tests map[string]Test
	// Files are other files by their path in the machine, such as boot/config.
	Files map[string][]byte
	// Links are symbolic links by their path in the machine, and what they lead to.
	Links map[string]string
	// Memory is as qemu has it; empty for 1G.
	Memory string
	// Env are words NAME=value for the environment of the tests.
	Env []string
}

// Test is a test binary and what of it runs.
type Test struct {
	Binary []byte
	Setting
}

// Setting is where and which tests run. Package init reads it as JSON.
type Setting struct {
	// Dir is the folder that they run in.
	Dir string
	// Run chooses tests as go test -run does; empty for all.
	Run string
	// Bench chooses benchmarks as go test -bench does; empty for none.
	Bench string
	// Timeout ends the tests of one binary.
	Timeout time.Duration
}

// The bounds of a machine. Under emulation on a busy processor the kernel takes half a
// minute to its first test, and the tests a few minutes.
const (
	bootBound = 3 * time.Minute
	// testBound is a Setting's Timeout where nobody says, and restBound what a machine has beside
	// the longest.
	testBound = 20 * time.Minute
	restBound = 20 * time.Minute
	// ahead is the niceness of a machine, as root: it is one thread for a quarter of an hour, and
	// all else of a run has ended before where a dozen other processes have the same.
	ahead = -5
)

// errNotBooted says that a machine stopped, or was stopped, before its first test.
var errNotBooted = errors.New("the machine did not boot")

// Run boots the machine, runs every test binary and returns what they did. A machine
// that does not boot is booted once more. log gets the console.
func (m Machine) Run(ctx context.Context, log io.Writer) (map[string]Result, error) {
	results, err := m.boot(ctx, log)
	if errors.Is(err, errNotBooted) && ctx.Err() == nil {
		fmt.Fprintf(log, "\nonce more: %v\n", err)
		results, err = m.boot(ctx, log)
	}
	return results, err
}

// boot runs the machine once. It emulates the processor, since not every machine can nest
// virtualisation, and its two processors in turns: with a thread for each, 6.1 locked up
// in two runs of three while a probe of sys_enter changed the kernel's own instructions.
func (m Machine) boot(ctx context.Context, log io.Writer) (map[string]Result, error) {
	dir, err := os.MkdirTemp("", "skep-vm")
	if err != nil {
		return nil, fmt.Errorf("boot kernel: %w", err)
	}
	defer os.RemoveAll(dir)
	body, err := m.archive()
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, body, 0o600); err != nil {
		return nil, fmt.Errorf("boot kernel: %w", err)
	}
	bound := restBound
	for _, test := range m.Tests {
		bound = max(bound, test.Timeout+restBound)
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(bootBound, func() { stop(fmt.Errorf("%w within %s", errNotBooted, bootBound)) })
	defer late.Stop()
	console := &console{log: log, begun: func() { late.Stop() }}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-m", cmp.Or(m.Memory, "1G"), "-smp", "2",
		"-nographic", "-no-reboot", "-kernel", m.Kernel, "-initrd", initrd,
		"-append", strings.Join(append([]string{"console=ttyS0 quiet panic=-1 lsm=lockdown,bpf"}, m.Env...), " "))
	cmd.Stdout = console
	// A run that is killed leaves no machine behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, ahead)
	defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) }()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run qemu: %w", errors.Join(err, context.Cause(ctx)))
	}
	return parse(console.text.Bytes())
}

// console keeps what a machine prints, and tells when its first test begins.
type console struct {
	text  bytes.Buffer
	log   io.Writer
	begun func()
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	c.text.Write(p)
	if c.begun != nil && bytes.Contains(c.text.Bytes(), []byte(begins)) {
		c.begun()
		c.begun = nil
	}
	return c.log.Write(p)
}

// begins is how init marks that a test begins.
const begins = "SKEP-VM begin "

// archive is the initial file system.
func (m Machine) archive() ([]byte, error) {
	files := maps.Clone(m.Files)
	if files == nil {
		files = map[string][]byte{}
	}
	for i, name := range m.Load {
		files[fmt.Sprintf("modules/%02d-%s.ko", i, name)] = m.Modules[name]
	}
	made := map[string]bool{".": true}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp"} {
		made[dir] = true
	}
	for name, test := range m.Tests {
		setting, err := json.Marshal(test.Setting)
		if err != nil {
			return nil, fmt.Errorf("make the file system of test %s: %w", name, err)
		}
		files["tests/"+name], files["settings/"+name] = test.Binary, setting
		parents(made, path.Join(test.Dir, "file"))
	}
	for name := range files {
		parents(made, name)
	}
	for name := range m.Links {
		parents(made, name)
	}
	delete(made, ".")
	var a archive
	if m.Init != nil {
		a.add("init", m.Init, 0o755)
	}
	for _, dir := range slices.Sorted(maps.Keys(made)) {
		a.dir(dir)
	}
	// The kernel opens it for init's output before anything is mounted.
	a.device("dev/console", 5, 1)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		a.add(name, files[name], 0o755)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Links)) {
		a.link(name, m.Links[name])
	}
	return a.close(), nil
}

// parents adds the folders that a file is in.
func parents(made map[string]bool, file string) {
	for dir := path.Dir(file); !made[dir]; dir = path.Dir(dir) {
		made[dir] = true
	}
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
	err := errors.New("the machine stopped before it ran all tests")
	if len(results) == 0 {
		err = fmt.Errorf("%w: %w", errNotBooted, err)
	}
	return results, err
}
