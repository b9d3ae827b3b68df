package confined

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsolatedProcessReachesNothing(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{isolatedVariable + "=" + filepath.Join(t.TempDir(), "new")}
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if strings.Contains(string(said), "links C") {
		t.Skip("SKIPPED: a binary that links C isolates itself less")
	}
	all := []string{"read a file", "list a folder", "make a file", "connect"}
	switch abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); {
	case errno != 0:
		t.Skip("SKIPPED: needs Landlock: run the tests on a kernel with CONFIG_SECURITY_LANDLOCK, and with landlock among its lsm=")
	case abi < 4:
		// Connections are since Linux 6.7.
		all = all[:3]
	}
	for _, what := range all {
		if want := what + ": permission denied"; !strings.Contains(string(said), want) {
			t.Errorf("%q is not in:\n%s", want, said)
		}
	}
}

// reachOut isolates this process, tries what a child must not do, and says
// what came of it.
func reachOut(file string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno == syscall.ENOTSUP {
		fmt.Println("this binary links C")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := isolate(); err != nil {
		return err
	}
	_, read := os.ReadFile("/proc/self/exe")
	_, list := os.ReadDir("/")
	_, create := os.Create(file)
	_, connect := net.Dial("tcp", listener.Addr().String())
	for what, err := range map[string]error{"read a file": read, "list a folder": list, "make a file": create, "connect": connect} {
		fmt.Printf("%s: %v\n", what, errors.Unwrap(err))
		if sys := new(os.SyscallError); errors.As(err, &sys) {
			fmt.Printf("%s: %v\n", what, sys.Err)
		}
	}
	return nil
}
