package leaks

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/child"
)

func TestMain(m *testing.M) { Main(m) }

// TestWhatIsLeftIsNamed makes one of everything.
func TestWhatIsLeftIsNamed(t *testing.T) {
	if !Isolated() {
		t.Skip("SKIPPED: needs root")
	}
	for want, leave := range map[string]func(t *testing.T) (gone func() error){
		"descriptor ": func(t *testing.T) func() error {
			f, err := os.Open("/proc/self/exe")
			fatal(t, err)
			return f.Close
		},
		"socket:[": func(t *testing.T) func() error {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
			fatal(t, err)
			return l.Close
		},
		"bpf-map": func(t *testing.T) func() error {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
			fatal(t, err)
			return m.Close
		},
		"pin /sys/fs/bpf/left": func(t *testing.T) func() error {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
			fatal(t, err)
			fatal(t, m.Pin("/sys/fs/bpf/left"))
			fatal(t, m.Close())
			return func() error { return os.Remove("/sys/fs/bpf/left") }
		},
		"cgroup " + filepath.Join(CgroupRoot(), "left"): func(t *testing.T) func() error {
			dir := filepath.Join(CgroupRoot(), "left")
			fatal(t, os.Mkdir(dir, 0o755))
			return func() error { return os.Remove(dir) }
		},
		"of net:[": func(t *testing.T) func() error {
			file := filepath.Join(t.TempDir(), "ns")
			fatal(t, os.WriteFile(file, nil, 0o600))
			fatal(t, unix.Mount("/proc/self/ns/net", file, "", unix.MS_BIND, ""))
			return func() error { return unix.Unmount(file, 0) }
		},
		"process ": func(t *testing.T) func() error {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
			in, err := cmd.StdinPipe()
			fatal(t, err)
			fatal(t, child.Start(cmd))
			return func() error { _ = in.Close(); return cmd.Wait() }
		},
	} {
		t.Run(want, func(t *testing.T) {
			before := held()
			gone := leave(t)
			named := false
			for what := range held() {
				named = named || !before[what] && strings.Contains(what, want)
			}
			if !named {
				t.Error("it is not named")
			}
			fatal(t, gone())
			for what := range held() {
				if !before[what] && strings.Contains(what, want) {
					t.Errorf("%s is named after it is gone", what)
				}
			}
		})
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leaves has TestLeaves leave something behind.
const leaves = "SKEP_TEST_LEAVES"

func TestLeaves(t *testing.T) {
	switch os.Getenv(leaves) {
	case "a pin":
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		fatal(t, err)
		fatal(t, m.Pin("/sys/fs/bpf/left"))
		fatal(t, m.Close())
	case "a process that waits":
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLeaves$")
		cmd.Env = append(os.Environ(), leaves+"=waits")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		fatal(t, cmd.Start())
		fmt.Println("started", CgroupRoot(), cmd.Process.Pid)
		fatal(t, cmd.Wait())
	case "waits":
		select {}
	case "the first thread elsewhere":
		for gone := false; !gone; {
			done := make(chan bool)
			go func() {
				runtime.LockOSThread()
				if unix.Gettid() != os.Getpid() {
					runtime.UnlockOSThread()
					done <- false
					return
				}
				fatal(t, unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS))
				done <- true
			}()
			gone = <-done
		}
	}
}

// runLeaves is this binary as go test starts it.
func runLeaves(t *testing.T, what string) *exec.Cmd {
	t.Helper()
	if !Isolated() {
		t.Skip("SKIPPED: needs root: sudo make test")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestLeaves$")
	cmd.Env = append(os.Environ(), leaves+"="+what, isolated+"=")
	return cmd
}

func TestWhatIsLeftFailsThePackage(t *testing.T) {
	out, err := runLeaves(t, "a pin").CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "pin /sys/fs/bpf/left") {
		t.Errorf("%v: %s", err, out)
	}
	for _, what := range []string{"nothing", "the first thread elsewhere"} {
		if out, err := runLeaves(t, what).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", what, err, out)
		}
	}
}

// TestAnInterruptEndsWhatTestsStarted: a process of a group of its own, too.
func TestAnInterruptEndsWhatTestsStarted(t *testing.T) {
	cmd := runLeaves(t, "a process that waits")
	out, err := cmd.StdoutPipe()
	fatal(t, err)
	fatal(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	fatal(t, err)
	fatal(t, cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err == nil {
		t.Error("it passed")
	}
	for _, dir := range folders(CgroupRoot()) {
		if strings.Contains(dir, "skep-test-"+strconv.Itoa(cmd.Process.Pid)) {
			t.Errorf("%s is left, %s", dir, line)
		}
	}
}

// TestABinaryThatStartsItselfRunsNoTests has nothing in TestMain that takes the child.
func TestABinaryThatStartsItselfRunsNoTests(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), isolated+"="+inside)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "calls MaybeChild") {
		t.Errorf("%v: %s", err, out)
	}
}
