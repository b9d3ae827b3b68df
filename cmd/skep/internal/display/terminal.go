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

// Between is what parts an answer in a format from the previous one. A terminal begins at its first line: what was on it before the first
// answer scrolls away, and is not lost.
func Between(w io.Writer, format string, isFirst bool) string {
	switch {
	case format == "json", isFirst && (IsData(format) || !Terminal(w)):
		return ""
	case format == "yaml":
		return "---\n"
	case !Terminal(w):
		return "\n"
	case !isFirst:
		return home
	}
	_, lines, _ := Size(w)
	return strings.Repeat("\n", lines) + home
}
