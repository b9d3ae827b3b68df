package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

// cgroupFor makes a cgroup of the test's own part of cgroup2.
func cgroupFor(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(leaks.CgroupRoot(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 1_000_000 {
			if err := os.Remove(dir); err == nil {
				return
			}
		}
		t.Errorf("cgroup %s stays", dir)
	})
	return dir
}

// spawn starts a process in the cgroup.
func spawn(t testing.TB, cgroup string) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// see notes who the process is.
func see(t testing.TB, pid int) Process {
	t.Helper()
	f, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := Process{PID: pid}
	in := ""
	if p.StartTime, err = f.StartTime(); err == nil {
		in, err = f.Cgroup()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.Within(in)
}

// reuse starts a process that gets the id, and returns nil where another process of the
// machine got it first.
func reuse(t testing.TB, pid int, cgroup string) *exec.Cmd {
	t.Helper()
	for unix.Kill(pid, 0) != nil {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0o600); err != nil {
			t.Skip("SKIPPED: the next id of a process cannot be chosen:", err)
		}
		next := spawn(t, cgroup)
		if next.Process.Pid == pid {
			return next
		}
		kill(next)
	}
	return nil
}

func TestARecycledIDIsNotTakenForTheProcess(t *testing.T) {
	need.Kernel(t)
	mine, others := cgroupFor(t, "mine"), cgroupFor(t, "others")
	for !recycled(t, mine, others) {
		// Another process of the machine got the id.
	}
}

// recycled reports whether a process got the id of one that ended, and checks that it is not
// taken for that.
func recycled(t *testing.T, mine, others string) bool {
	t.Helper()
	first := spawn(t, mine)
	p := see(t, first.Process.Pid)
	folder, err := Open(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	root, err := p.Root()
	if err != nil || !p.IsRunning() {
		t.Fatalf("of a running process: %v", err)
	}
	_ = root.Close()
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for p.IsRunning() {
		// It has ended before anybody waits for it.
	}
	_ = first.Wait()
	if _, err := p.Root(); err == nil || p.IsRunning() {
		t.Error("a process that ended has a root")
	}
	next := reuse(t, p.PID, others)
	if next == nil {
		return false
	}
	defer kill(next)
	if f, err := p.Root(); err == nil {
		t.Errorf("the root of another process is opened: %s", f.Name())
	}
	if _, _, err := p.NetworkNamespace(); err == nil || p.IsRunning() {
		t.Error("the namespace of another process is opened")
	}
	if _, err := folder.StartTime(); err == nil {
		t.Error("the folder of the first process shows the next one")
	}
	now := see(t, next.Process.Pid)
	now.StartTime--
	if _, err := now.Root(); !errors.Is(err, ErrOther) {
		t.Errorf("with another start time: %v", err)
	}
	now.StartTime++
	if _, err := now.Within("/mine").Root(); err == nil || !strings.Contains(err.Error(), "it left the cgroup /mine for /others") {
		t.Errorf("in another cgroup: %v", err)
	}
	return true
}

// TestNoRaceGivesAnotherProcess opens the root and namespace of processes that end, and whose
// ids are others' at once.
func TestNoRaceGivesAnotherProcess(t *testing.T) {
	need.Kernel(t)
	mine, others := cgroupFor(t, "mine"), cgroupFor(t, "others")
	for range 20 {
		first := spawn(t, mine)
		p := see(t, first.Process.Pid)
		stop, opened := make(chan struct{}), make(chan error)
		go func() {
			var wrong error
			for {
				select {
				case <-stop:
					opened <- wrong
					return
				default:
				}
				f, err := p.Root()
				if err != nil {
					continue
				}
				// What was opened is of a process that was there before and after.
				if body, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID)); err == nil && strings.Contains(string(body), "0::/others") {
					if now, err := p.Root(); err == nil {
						wrong = fmt.Errorf("%s of the next process", now.Name())
						_ = now.Close()
					}
				}
				_ = f.Close()
			}
		}()
		kill(first)
		next := reuse(t, p.PID, others)
		close(stop)
		if err := <-opened; err != nil {
			t.Error(err)
		}
		if next != nil {
			kill(next)
		}
	}
}

func TestADeniedLookNamesTheCapability(t *testing.T) {
	need.Kernel(t)
	cmd := spawn(t, cgroupFor(t, "denied"))
	defer kill(cmd)
	p := see(t, cmd.Process.Pid)
	var root, namespace error
	drop.Capabilities(t, func() {
		_, root = p.Root()
		_, _, namespace = p.NetworkNamespace()
	}, unix.CAP_SYS_PTRACE)
	for _, err := range []error{root, namespace} {
		if err == nil || !errors.As(err, new(*rights.Error)) || !strings.Contains(err.Error(), "this process lacks CAP_SYS_PTRACE; grant it") {
			t.Errorf("without the capability: %v", err)
		}
	}
	if err := denied(unix.EACCES); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "a security module such as AppArmor denies it") {
		t.Errorf("with the capability: %v", err)
	}
	ns, id, err := p.NetworkNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	if own, _ := os.Readlink("/proc/self/ns/net"); own != fmt.Sprintf("net:[%d]", id) {
		t.Errorf("namespace %d, want %s", id, own)
	}
}

func TestCgroupLines(t *testing.T) {
	for body, want := range map[string]string{
		"0::/\n": "/",
		"12:cpu:/a\n1:name=systemd:/b\n0::/c/d\n": "/c/d",
		"0::/../../kubepods/pod1/x\n":             "/../../kubepods/pod1/x",
		"0::/..\n":                                "/..",
		"0::/.hidden/..name\n":                    "/.hidden/..name",
		"":                                        "",
		"1:cpu:/a\n":                              "",
		"0::relative\n":                           "",
		"0::/a/../../b\n":                         "",
		"0::/a//b\n":                              "",
		"0::/a/\n":                                "",
		"0::/a (deleted)\n":                       "",
		"0::\n":                                   "",
		"0::/" + strings.Repeat("a", 5000) + "\n": "",
	} {
		got, err := ParseCgroup([]byte(body))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.40q: %q, %v, want %q", body, got, err, want)
		}
	}
}

func TestStartTimes(t *testing.T) {
	tail := " S" + strings.Repeat(" 1", 18) + " 4242 7\n"
	for stat, want := range map[string]uint64{
		"1 (sh)" + tail: 4242, "1 (a) b (c)" + tail: 4242, "1 (\n))" + tail: 4242, "1 sh" + tail: 0, "1 (sh) S 1": 0, "": 0,
	} {
		if got, err := parseStartTime([]byte(stat)); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v", stat, got, err)
		}
	}
}

func FuzzProcFiles(f *testing.F) {
	f.Add([]byte("0::/../kubepods/x\n"))
	f.Add([]byte("1 (sh) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 4242"))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = parseStartTime(body)
		in, err := ParseCgroup(body)
		if err != nil {
			return
		}
		// However often it goes up first, it goes down only after that.
		rest := in
		for strings.HasPrefix(rest, "/..") && (len(rest) == 3 || rest[3] == '/') {
			rest = rest[3:]
		}
		if in[0] != '/' || rest != "" && rest != filepath.Clean(rest) || !strings.Contains(string(body), in) {
			t.Errorf("%q", in)
		}
	})
}

func TestFilesAreFoundInTheRoot(t *testing.T) {
	dir := t.TempDir()
	root := rootOf(t, dir)
	for _, folder := range []string{"usr/bin", "usr/lib/" + multiarch(), "lib64", "outside"} {
		must(t, os.MkdirAll(filepath.Join(dir, "r", folder), 0o755))
	}
	file := func(name string, mode os.FileMode) {
		must(t, os.WriteFile(filepath.Join(dir, "r", name), []byte(name), mode))
	}
	file("usr/bin/tool", 0o755)
	file("usr/bin/text", 0o644)
	file("lib64/libone.so.1", 0o644)
	file("usr/lib/"+multiarch()+"/libtwo.so", 0o644)
	must(t, os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600))
	link := func(to, name string) { must(t, os.Symlink(to, filepath.Join(dir, "r", name))) }
	link("/usr/bin/tool", "absolute")
	link("../../../../secret", "out")
	link("/proc/self/root/etc/passwd", "magic")
	link("loop", "loop")
	must(t, unix.Mkfifo(filepath.Join(dir, "r/fifo"), 0o600))
	for name, want := range map[string]string{
		"/usr/bin/tool": "usr/bin/tool", "absolute": "", "/absolute": "usr/bin/tool", "/../../usr/bin/tool": "usr/bin/tool",
		"tool": "usr/bin/tool", "text": "", "libone.so.1": "lib64/libone.so.1", "libtwo.so": "usr/lib/" + multiarch() + "/libtwo.so",
		"libthree.so": "", "/out": "", "/magic": "", "/loop": "", "/fifo": "", "/usr": "", "": "", "/usr/bin/tool/x": "",
		"a\x00b": "", "/" + strings.Repeat("a", 5000): "",
	} {
		f, err := OpenIn(root, name)
		if (err == nil) != (want != "") {
			t.Errorf("%.40q: %v, want %q", name, err, want)
		}
		if err != nil {
			continue
		}
		if body, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil || string(body) != want {
			t.Errorf("%q leads to %q, %v", name, body, err)
		}
		_ = f.Close()
	}
	if _, err := OpenIn(root, "/out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link out of the root: %v", err)
	}
	const version = "; programs load libraries by names with a version"
	for name, hint := range map[string]bool{"libssl": true, "libthree.so": true, "libthree.so.3": false, "nothing": false} {
		if _, err := OpenIn(root, name); err == nil || strings.Contains(err.Error(), version) != hint {
			t.Errorf("%s that is not there: %v", name, err)
		}
	}
	if _, err := OpenIn(root, "/fifo"); err == nil || err.Error() != "open /fifo: it is a named pipe, and not a regular file; name the program or library itself" {
		t.Errorf("a named pipe: %v", err)
	}
	all, err := os.Open("/")
	must(t, err)
	defer func() { _ = all.Close() }()
	if _, err := OpenIn(all, "/proc/version"); err == nil || !strings.Contains(err.Error(), "it is a file of procfs") {
		t.Errorf("a file of procfs: %v", err)
	}
	if _, err := OpenIn(all, "/proc/self/exe"); err == nil {
		t.Error("a link of procfs leads to a file")
	}
}

func rootOf(t testing.TB, dir string) *os.File {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "r"), 0o755))
	root, err := os.Open(filepath.Join(dir, "r"))
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
