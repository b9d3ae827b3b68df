package top_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pty makes a terminal of a size; what is written to it is read from its manager.
func pty(t *testing.T, width, height uint16) (manager, terminal *os.File) {
	t.Helper()
	manager, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	number, err := unix.IoctlGetInt(int(manager.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(manager.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
	return manager, terminal
}
