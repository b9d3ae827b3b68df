// Command init is the first and only program of a virtual machine that tests
// run in: it mounts what they need, loads modules, runs every test binary,
// reports on the console and switches the machine off.
//
// It owns nothing outside the machine. test/kernel reads its marks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: this program runs as the first process of a virtual machine only")
		os.Exit(2)
	}
	if err := prepare(); err != nil {
		fmt.Println("init:", err)
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		fmt.Println("init:", err)
	}
	for _, test := range tests {
		run(test)
	}
	fmt.Println("SKEP-VM end all")
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init:", err)
	}
}

// prepare mounts file systems and loads modules. What is missing shows in the
// tests.
func prepare() error {
	var errs []error
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"},
		{"tracefs", "/sys/kernel/tracing"}, {"bpf", "/sys/fs/bpf"}, {"cgroup2", "/sys/fs/cgroup"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.kind, err))
		}
	}
	modules, err := filepath.Glob("/modules/*.ko")
	errs = append(errs, err)
	for _, path := range modules {
		body, err := os.ReadFile(path)
		if err == nil {
			err = unix.InitModule(body, "")
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("load module %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// run runs one test binary between two marks.
func run(test string) {
	name := filepath.Base(test)
	var setting struct {
		Dir, Run, Bench string
		Timeout         time.Duration
	}
	body, err := os.ReadFile("/settings/" + name)
	if err == nil {
		err = json.Unmarshal(body, &setting)
	}
	if err != nil {
		fmt.Println("init:", err)
	}
	fmt.Println("SKEP-VM begin", name)
	cmd := exec.CommandContext(context.Background(), test, "-test.v", "-test.short", "-test.timeout="+setting.Timeout.String(), "-test.run="+setting.Run,
		"-test.bench="+setting.Bench)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/"+setting.Dir, os.Stdout, os.Stdout
	cmd.Env = append(os.Environ(), "PATH=/", "HOME=/tmp")
	code := 0
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		code = 1
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		fmt.Println("init:", err)
	}
	fmt.Println("SKEP-VM end", name, code)
}
