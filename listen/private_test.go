package listen_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/listen"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/need"
)

// nobody is another local user.
const nobody = 65534

// dialVariable has the test binary connect to a Unix socket and exit: 0 where it could.
const dialVariable = "SKEP_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialVariable); path != "" {
		if _, err := net.Dial("unix", path); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// connects reports whether a user can connect to a Unix socket.
func connects(t *testing.T, uid uint32, path string) bool {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Dir, c.Env = "/", []string{dialVariable + "=" + path}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	err := child.Run(c)
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return err == nil
}

// private listens at a path of a folder that everybody may enter, with an umask that
// takes no right away, and returns whether the file's mode was changed after it was made.
func private(t *testing.T) (path string, changed bool) {
	t.Helper()
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	// The parent is for the test's own user alone.
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "a.sock")
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Close() }()
	if err := watch.Add(dir); err != nil {
		t.Fatal(err)
	}
	l, err := listen.Private(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	last := filepath.Join(dir, "last")
	if err := os.WriteFile(last, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	overdue := time.After(time.Minute)
	for {
		select {
		case e := <-watch.Events:
			if e.Name == last {
				return path, changed
			}
			changed = changed || e.Has(fsnotify.Chmod)
		case <-overdue:
			t.Fatal("the kernel does not say what was done to the folder")
		}
	}
}

// TestAPrivateSocketHasItsModeFromTheBeginning: between bind and chmod, others could
// connect, and a connection that is waiting stays.
func TestAPrivateSocketHasItsModeFromTheBeginning(t *testing.T) {
	path, changed := private(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("its file is %v, %v", info.Mode(), err)
	}
	if changed {
		t.Error("its mode was changed after it could be connected to")
	}
}

func TestAPrivateSocketIsItsOwnersAlone(t *testing.T) {
	need.Root(t)
	path, _ := private(t)
	if !connects(t, 0, path) {
		t.Error("its owner cannot connect")
	}
	if connects(t, nobody, path) {
		t.Error("another user can connect")
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if !connects(t, nobody, path) {
		t.Error("the other user could not connect to any socket there")
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := listen.Private(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
