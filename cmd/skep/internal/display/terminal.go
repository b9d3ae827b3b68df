package display

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What has a terminal begin at its first line, forget the rest of a line, and forget what is below.
const (
	home       = "\x1b[H"
	RestOfLine = "\x1b[K"
	Below      = "\x1b[J"
)

// Terminal reports whether w is one a person looks at, and that obeys commands.
func Terminal(w io.Writer) bool {
	_, _, is := Size(w)
	return is && os.Getenv("TERM") != "dumb"
}

// Size returns the columns and lines of a terminal. Zero is not known.
func Size(w io.Writer) (columns, lines int, isTerminal bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(size.Col), int(size.Row), true
}

// Redraw has a terminal begin at its first line. What was on it before the first time scrolls away, and is not lost.
func Redraw(w io.Writer, isFirst bool) string {
	if !isFirst {
		return home
	}
	_, lines, _ := Size(w)
	return strings.Repeat("\n", lines) + home
}
