package leaks

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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
			cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: false, Pdeathsig: syscall.SIGKILL}
			in, err := cmd.StdinPipe()
			fatal(t, err)
			fatal(t, cmd.Start())
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
