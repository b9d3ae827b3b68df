// Package need skips tests for what a machine lacks, with one text for each lack that names
// the command that brings it. The end of a run counts the skipped tests by that text.
//
// It owns the texts. What a kernel lacks, the tests say themselves.
package need

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/skep-dev/skep/test/harness/leaks"
)

// The texts that more than one test skips for.
const (
	root       = "SKIPPED: needs root: sudo make test"
	namespaces = "SKIPPED: needs a kernel, and this machine forbids namespaces and mounts even to root: " +
		"run the tests in a virtual machine or a privileged container"
)

// Root skips a test that another user than root cannot run.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(root)
	}
}

// Kernel skips a test that loads programs, mounts file systems or makes namespaces, where that
// is not allowed. The package's TestMain calls leaks.Main or leaks.Run.
func Kernel(t testing.TB) {
	t.Helper()
	Root(t)
	switch {
	case leaks.Forbidden():
		t.Skip(namespaces)
	case !leaks.Isolated():
		t.Fatal("the package's TestMain does not call leaks.Main")
	}
}

// Program returns the path of a program of the machine, and skips the test without it.
func Program(t testing.TB, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: needs %s: apt-get install %s", name, debian)
	}
	return path
}

// File skips a test without a file of a package of Debian's.
func File(t testing.TB, path, debian string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("SKIPPED: needs %s: apt-get install %s", path, debian)
	}
}

// Sys skips a test that reads what the kernel says of itself below /sys, where that is not mounted.
func Sys(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("SKIPPED: needs the kernel's types: mount -t sysfs sysfs /sys, and a kernel with BTF")
	}
}

// Localhost skips a test that connects to this machine by its name, where it has none.
func Localhost(t testing.TB) {
	t.Helper()
	if _, err := net.DefaultResolver.LookupHost(t.Context(), "localhost"); err != nil {
		t.Skip("SKIPPED: needs the name localhost: echo 127.0.0.1 localhost | sudo tee -a /etc/hosts")
	}
}

// Cgroup returns where cgroup2 is mounted, and skips the test where it is not. Isolated tests
// have it always.
func Cgroup(t testing.TB) string {
	t.Helper()
	root := leaks.CgroupRoot()
	if root == "" {
		t.Skip("SKIPPED: needs cgroup2: mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	return root
}
