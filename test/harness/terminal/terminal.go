// Package terminal makes terminals for tests of what commands print on one. It knows no command.
package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is a terminal of a size.
type Terminal struct {
	// File is what a command writes to.
	*os.File

	manager *os.File
}

// New makes a terminal of so many columns and lines, which obeys commands whatever the test's own does.
func New(t *testing.T, width, height uint16) Terminal {
	t.Helper()
	t.Setenv("TERM", "xterm")
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
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
	return Terminal{file, manager}
}

// Written closes the terminal and returns all that was written to it, a few kilobytes at most.
func (w Terminal) Written(t *testing.T) string {
	t.Helper()
	_ = w.Close()
	all, err := io.ReadAll(w.manager)
	// Linux ends what a closed terminal showed with an error.
	if !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	return string(all)
}
