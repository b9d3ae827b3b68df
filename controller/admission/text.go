package admission

import (
	"fmt"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/text"
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
		lines = append(lines, text.Line(gate.Sentence(r)))
	}
	return lines
}

// warnings are lines as the API server hands them on.
func warnings(prefix string, lines []string) []string {
	cut := make([]string, 0, len(lines))
	for _, line := range lines {
		text := []rune(text.Line(prefix + line))
		if len(text) > maxWarningRunes {
			text = append(text[:maxWarningRunes-1], '…')
		}
		cut = append(cut, string(text))
	}
	return cut
}
