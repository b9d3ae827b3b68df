package admission

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/skep-dev/skep/policies"
)

func TestAnswersAreBounded(t *testing.T) {
	reasons := slices.Repeat([]policies.Reason{{Rule: "p/r", Message: strings.Repeat("é", 300) + "\n\x1b[31m", Fix: "fix it"}}, 20)
	lines := sentences(reasons, maxWarnings)
	if len(lines) != maxWarnings+1 || lines[maxWarnings] != "and 13 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	if strings.ContainsAny(lines[0], "\n\x1b") || !strings.HasSuffix(lines[0], "(fix it)") {
		t.Errorf("not printable, or cut: %q", lines[0])
	}
	total := 0
	for _, w := range append(warnings("denied: ", lines), warnings("", lines)...) {
		n := utf8.RuneCountInString(w)
		total += n
		if n > maxWarningRunes {
			t.Errorf("a warning of %d characters", n)
		}
	}
	if total > 4096 {
		t.Errorf("%d characters of warnings: the API server drops the last", total)
	}
}
