package demo

import (
	"fmt"
	"io"
	"strings"
)

// narrator writes the story.
type narrator struct {
	out    io.Writer
	colour bool
	act    int
}

// The colours of the story.
const (
	bold  = "1"
	green = "32"
	red   = "31"
	faint = "2"
)

func (n *narrator) paint(code, s string) string {
	if !n.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// title begins an act.
func (n *narrator) title(format string, args ...any) {
	n.act++
	fmt.Fprintf(n.out, "\n%s\n", n.paint(bold, fmt.Sprintf("%d. %s", n.act, fmt.Sprintf(format, args...))))
}

// say writes one line of an act.
func (n *narrator) say(format string, args ...any) {
	fmt.Fprintf(n.out, "   %s\n", fmt.Sprintf(format, args...))
}

// quote shows a file, as far as it fits.
func (n *narrator) quote(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Fprintf(n.out, "   %s\n", n.paint(faint, "│ "+strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "  ")))
	}
}

// good and bad are answers.
func (n *narrator) good(format string, args ...any) {
	n.say("%s %s", n.paint(green, "✓"), fmt.Sprintf(format, args...))
}

func (n *narrator) bad(format string, args ...any) {
	n.say("%s %s", n.paint(red, "✗"), fmt.Sprintf(format, args...))
}
