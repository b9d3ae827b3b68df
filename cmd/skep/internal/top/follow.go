package top

import (
	"context"
	"io"
	"strings"
	"time"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// Source describes nodes now.
type Source func(ctx context.Context) ([]view.NodeView, error)

// Request is what to show, and how.
type Request struct {
	Choice
	// Output is json or yaml to have a list of Row written.
	Output string
	// Follow shows programs again after each window, until ctx ends. A terminal is redrawn.
	Follow bool
	// Interval is how often the source is asked; zero means every second.
	Interval time.Duration
}

// Show shows programs.
func Show(ctx context.Context, w io.Writer, from Source, r Request) error {
	if r.Interval == 0 {
		r.Interval = time.Second
	}
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	shown, isFirst := time.Time{}, true
	defer func() {
		if !isFirst && r.isRedrawn(w) {
			// What is printed next begins a line.
			_, _ = io.WriteString(w, "\n")
		}
	}()
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

// isRedrawn reports whether each look takes the place of the previous one.
func (r Request) isRedrawn(w io.Writer) bool {
	return r.Follow && !display.IsData(r.Output) && display.Terminal(w)
}

// write writes one look.
func (r Request) write(w io.Writer, nodes []view.NodeView, isFirst bool) error {
	rows, page := Rows(nodes, r.Choice), ""
	if r.Follow {
		page = display.Between(w, r.Output, isFirst)
	}
	if display.IsData(r.Output) {
		if _, err := io.WriteString(w, page); err != nil {
			return err
		}
		return display.Data(w, r.Output, rows)
	}
	var s Screen
	s.Width, s.Height, _ = display.Size(w)
	between, end := display.RestOfLine+"\n", display.RestOfLine+display.Below
	if !r.isRedrawn(w) {
		s.Height, between, end = 0, "\n", "\n"
	}
	lines := Print(nodes, rows, s, func(line string) string { return display.Paint(w, display.Faint, line) })
	_, err := io.WriteString(w, page+strings.Join(lines, between)+end)
	return err
}
