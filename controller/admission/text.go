package admission

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

// Bounds on what one answer says. The API server cuts a warning beyond 256
// characters and all of them beyond 4096, and drops those with control
// characters whole. An answer has two lists of warnings at most.
const (
	maxWarningRunes = 256
	maxWarnings     = 7
	maxReasons      = 16
)

// sentences are reasons as text, the first few of them.
func sentences(reasons []policies.Reason, most int) []string {
	lines := make([]string, 0, min(len(reasons), most)+1)
	for i, r := range reasons {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more", len(reasons)-i))
			break
		}
		lines = append(lines, printable(gate.Sentence(r)))
	}
	return lines
}

// warnings are lines as the API server hands them on.
func warnings(prefix string, lines []string) []string {
	cut := make([]string, 0, len(lines))
	for _, line := range lines {
		text := []rune(printable(prefix + line))
		if len(text) > maxWarningRunes {
			text = append(text[:maxWarningRunes-1], '…')
		}
		cut = append(cut, string(text))
	}
	return cut
}

// printable replaces what a terminal would not show, or would obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
