package top

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// Source describes nodes now.
type Source func(ctx context.Context) ([]view.NodeView, error)

// Request is what to show, and how.
type Request struct {
	Choice
	// JSON has a list of Row written.
	JSON bool
	// Follow shows programs again after each window, until ctx ends. A terminal is redrawn.
	Follow bool
	// Interval is how often the source is asked; zero means every second.
	Interval time.Duration
}

// What has a terminal begin at its first line, forget the rest of a line, and forget what is below.
const (
	begin = "\x1b[H"
	rest  = "\x1b[K"
	below = "\x1b[J"
)

// Show shows programs.
func Show(ctx context.Context, w io.Writer, from Source, r Request) error {
	if r.Interval == 0 {
		r.Interval = time.Second
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	shown, isFirst := time.Time{}, true
	for {
		nodes, err := from(ctx)
		if err != nil {
			return err
		}
		if len(r.Owners) > 0 && !r.Follow && len(Rows(nodes, r.Choice)) == 0 {
			return exit.Absent("show programs of %s: no program in the kernel is of such an application, nor held by such a process; skep top shows all",
				strings.Join(r.Owners, ", "))
		}
		if at := Measured(nodes); isFirst || at.After(shown) {
			if err := r.write(w, nodes, isFirst); err != nil {
				return err
			}
			shown, isFirst = at, false
		}
		if !r.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// write writes one look.
func (r Request) write(w io.Writer, nodes []view.NodeView, isFirst bool) error {
	rows := Rows(nodes, r.Choice)
	if r.JSON {
		return display.JSON(w, rows)
	}
	s, isRedrawn := screen(w), r.Follow && display.Terminal(w)
	between, end := "\n", "\n"
	if isRedrawn {
		between, end = rest+"\n", rest+below
	}
	page := ""
	switch {
	case isRedrawn && isFirst:
		// What was on the terminal scrolls away, and is not lost.
		page = strings.Repeat("\n", s.Height) + begin
	case isRedrawn:
		page = begin
	case !isFirst:
		page = "\n"
	}
	if !isRedrawn {
		s.Height = 0
	}
	lines := Print(nodes, rows, s, func(line string) string { return display.Paint(w, display.Faint, line) })
	_, err := io.WriteString(w, page+strings.Join(lines, between)+end)
	return err
}

// screen is the size of a terminal.
func screen(w io.Writer) Screen {
	f, ok := w.(*os.File)
	if !ok {
		return Screen{}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return Screen{}
	}
	return Screen{Width: int(size.Col), Height: int(size.Row)}
}
