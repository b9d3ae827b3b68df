package controller

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestANoteIsCutWhereTheAPIServerWouldRefuseIt(t *testing.T) {
	for sentence, c := range map[string]struct {
		note string
		cut  bool
	}{
		"it is short":                         {"loaded on 2 of 2 nodes", false},
		"it just fits":                        {strings.Repeat("a", maxNote), false},
		"it is one byte too long":             {strings.Repeat("a", maxNote+1), true},
		"the cut is in the middle of a rune":  {strings.Repeat("ü", maxNote), true},
		"the cut is beside the middle of one": {"a" + strings.Repeat("ü", maxNote), true},
	} {
		got := shortened(c.note)
		if len(got) > maxNote || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid: %v", sentence, len(got), utf8.ValidString(got))
		}
		if cut := got != c.note; cut != c.cut || cut && !strings.HasSuffix(got, "all of it)") {
			t.Errorf("%s: it ends with %q", sentence, got[max(0, len(got)-20):])
		}
	}
}
