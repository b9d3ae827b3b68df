// Package story tells shows: acts with a title, what is done, and how it ends. It
// knows nothing of what it tells.
package story

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Narrator writes the story.
type Narrator struct {
	// Out gets it; Colour paints the answers.
	Out    io.Writer
	Colour bool

	act int
}

// The colours of the story, as terminals number them.
const (
	Bold  = "1"
	Green = "32"
	Red   = "31"
	Faint = "2"
)

// Paint colours a text, where there are colours.
func (n *Narrator) Paint(code, s string) string {
	if !n.Colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Act begins an act with its title, and with what is at stake in one line.
func (n *Narrator) Act(title, stake string) {
	n.act++
	fmt.Fprintf(n.Out, "\n%s\n", n.Paint(Bold, fmt.Sprintf("%d. %s", n.act, title)))
	n.Say("%s", n.Paint(Faint, stake))
}

// digest is a whole one, as it stands in a reference or in a tag.
var digest = regexp.MustCompile(`(sha256[:-][0-9a-f]{12})[0-9a-f]{52}`)

// Shorten cuts every digest of a text to the twelve digits that people compare.
func Shorten(text string) string { return digest.ReplaceAllString(text, "$1…") }

// Say writes one line of an act.
func (n *Narrator) Say(format string, args ...any) {
	fmt.Fprintf(n.Out, "   %s\n", fmt.Sprintf(format, args...))
}

// Quote shows a file, as far as it fits.
func (n *Narrator) Quote(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Fprintf(n.Out, "   %s\n", n.Paint(Faint, "│ "+strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "  ")))
	}
}

// Good is an answer as it should be.
func (n *Narrator) Good(format string, args ...any) {
	n.Say("%s %s", n.Paint(Green, "✓"), fmt.Sprintf(format, args...))
}

// Bad is an answer that is wrong, or a denial.
func (n *Narrator) Bad(format string, args ...any) {
	n.Say("%s %s", n.Paint(Red, "✗"), fmt.Sprintf(format, args...))
}
