package diff

import (
	"errors"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/hostile"
	"github.com/skep-dev/skep/text"
)

// TestNoFieldOfAnObjectReachesTheTerminalAsItIs: the author of one object writes its annotations, and what messages quote.
func TestNoFieldOfAnObjectReachesTheTerminalAsItIs(t *testing.T) {
	var r Report
	hostile.Fill(&r)
	// A diff has lines.
	r.Changes[0].Diff = "+" + strings.ReplaceAll(hostile.Text, "\n", "\n+") + "\n"
	for i, answer := range []Answer{Denied, Invalid, Unknown} {
		r.Changes = append(r.Changes, r.Changes[0])
		r.Changes[i].Answer = answer
	}
	for _, format := range Formats() {
		hostile.Check(t, "diff -o "+format, printed(t, &r, format))
	}
	err := errors.Join(r.Error(), r.add(r.Changes[0].Identity, false, nil, []byte("broken")))
	hostile.Check(t, "the last line", text.Printable(err.Error()))
}

// TestOneCharacterDoesNotEndAComparison of all objects: anybody may have written it in a cluster.
func TestOneCharacterDoesNotEndAComparison(t *testing.T) {
	doc, err := document(marked("kubectl", nil, map[string]string{"a": hostile.Text}))
	if err != nil || !strings.Contains(doc, `\x9B2J`) {
		t.Errorf("it is %q, %v", doc, err)
	}
}
