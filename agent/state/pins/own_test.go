package pins

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// nobody is the user that attacks.
const nobody = 65534

// openBPFFS mounts a BPF file system of its own, with a mode.
func openBPFFS(t *testing.T, mode string) string {
	t.Helper()
	need.Kernel(t)
	dir := t.TempDir()
	// The parent is for the test's own user alone.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode="+mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// asNobody is a command that runs as an unprivileged user.
func asNobody(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), need.Program(t, args[0], "coreutils util-linux"), args[1:]...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return c
}

func TestADirectoryThatOthersCanChangeIsNotUsed(t *testing.T) {
	for sentence, c := range map[string]struct {
		mode   string
		attack func(t *testing.T, bpffs string) error
		want   []string
		// command is that of the message; mends: it is all that it takes.
		command string
		mends   bool
	}{
		"a local user made it first": {"1777", func(t *testing.T, bpffs string) error {
			return asNobody(t, "mkdir", "-m", "0700", filepath.Join(bpffs, "skep")).Run()
		}, []string{"belongs to uid 65534", "0700", "runs as uid 0", "remove it", "`chmod 0700 "}, "chmod 0700 %s", false},
		"a local user made it a link to another": {"1777", func(t *testing.T, bpffs string) error {
			return errors.Join(asNobody(t, "mkdir", filepath.Join(bpffs, "theirs")).Run(),
				asNobody(t, "ln", "-s", filepath.Join(bpffs, "theirs"), filepath.Join(bpffs, "skep")).Run())
		}, []string{"symbolic link", "remove it"}, "chmod 0700 %s", false},
		"anybody may put another in its place": {"0700", func(_ *testing.T, bpffs string) error { return os.Chmod(bpffs, 0o777) },
			[]string{"mode 0777", "chmod 0700"}, "chown root %s && chmod 0700 %s", true},
		"the file system belongs to a local user": {"0700", func(_ *testing.T, bpffs string) error {
			return os.Chown(bpffs, nobody, nobody)
		}, []string{"belongs to uid 65534", "chown root"}, "chown root %s && chmod 0700 %s", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			bpffs := openBPFFS(t, c.mode)
			if err := c.attack(t, bpffs); err != nil {
				t.Fatal(err)
			}
			s, err := OpenStore(filepath.Join(bpffs, "skep"))
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, ErrExposed) {
				t.Fatalf("OpenStore = %v", err)
			}
			for _, want := range append(c.want, bpffs) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			recommended.Run(t, err.Error(), c.command)
			if s, err = OpenStore(filepath.Join(bpffs, "skep")); err == nil {
				_ = s.Close()
			}
			if c.mends != (err == nil) {
				t.Errorf("after that, OpenStore = %v", err)
			}
		})
	}
}

// TestAnOpenDirectoryOfOursIsClosedToOthers: one that was made by hand, or for
// another agent.
func TestAnOpenDirectoryOfOursIsClosedToOthers(t *testing.T) {
	root := filepath.Join(openBPFFS(t, "1777"), "skep")
	if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if info, err := os.Stat(root); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it has mode %v, %v", info.Mode(), err)
	}
	if err := asNobody(t, "ls", root).Run(); err == nil {
		t.Error("a local user may read it")
	}
	// Where nothing can be changed, no change is recommended.
	if err := errors.Join(s.Close(), os.Chmod(root, 0o755), unix.Mount("", filepath.Dir(root), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(root); !errors.Is(err, ErrExposed) || !strings.Contains(err.Error(), "mounted writable") || len(recommended.Commands(err.Error())) > 0 {
		t.Errorf("on a read-only file system: %v", err)
	}
}

// TestALocalUserLocksNoDirectoryOfOurs: a lock takes an open file, and with it the
// right to read the directory.
func TestALocalUserLocksNoDirectoryOfOurs(t *testing.T) {
	root := filepath.Join(openBPFFS(t, "1777"), "skep")
	lock := func() (*exec.Cmd, bool) {
		c := asNobody(t, "flock", "-n", root, "sh", "-c", "echo locked; cat")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		return c, line == "locked\n"
	}
	s, err := OpenStore(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, locked := lock(); locked {
		t.Error("a local user locked it")
	}
	// One that was open to others may be locked already.
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, locked := lock(); !locked {
		t.Fatal("the test locks nothing")
	}
	if _, err := OpenStore(root); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "fuser -v "+root) {
		t.Errorf("OpenStore = %v", err)
	} else {
		recommended.Run(t, err.Error(), "fuser -v %s")
	}
}
