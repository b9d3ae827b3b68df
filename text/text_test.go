package text_test

import (
	"testing"

	"github.com/skep-dev/skep/text"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s            string
		most         int
		bytes, runes string
	}{
		{"", 0, "", ""},
		{"abc", 3, "abc", "abc"},
		{"abcdef", 5, "ab…", "abcd…"},
		{"äöüß", 5, "ä…", "äöüß"},
		{"äöüß", 3, "…", "äö…"},
		{"abc", 2, "", "a…"},
		{"abc", 0, "", ""},
		{"a\xffb", 9, "a\uFFFDb", "a\uFFFDb"},
	} {
		if got := text.Cut(c.s, c.most); got != c.bytes || len(got) > c.most {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.s, c.most, got, c.bytes)
		}
		if got := text.CutRunes(c.s, c.most); got != c.runes {
			t.Errorf("CutRunes(%q, %d) = %q, want %q", c.s, c.most, got, c.runes)
		}
	}
	if got := text.CutTo("abcdefgh", 7, "[...]"); got != "ab[...]" {
		t.Errorf("CutTo = %q", got)
	}
}

func TestWhatATerminalWouldObeyIsShown(t *testing.T) {
	const s = "a\x1b[2Jb\r\n\tc\u202ed"
	if got, want := text.Printable(s), "a\uFFFD[2Jb\uFFFD\n\tc\uFFFDd"; got != want {
		t.Errorf("Printable = %q, want %q", got, want)
	}
	if got, want := text.Line(s), "a\uFFFD[2Jb\uFFFD  c\uFFFDd"; got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
}

func TestNamesAreWrittenAsWords(t *testing.T) {
	for name, want := range map[string]string{"": "", "Allowed": "allowed", "EvaluationFailed": "evaluation failed", "RolledBack": "rolled back"} {
		if got := text.Words(name); got != want {
			t.Errorf("%s is written %q, want %q", name, got, want)
		}
	}
}

func TestNoFurtherLineLooksLikeOneOfACommand(t *testing.T) {
	if got, want := text.Indented("a\x1b[2J\nDENIED b"), "a\ufffd[2J\n            DENIED b"; got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}
