package display

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/harness/terminal"
)

func TestProgressIsALineOnATerminalAndElsewhereALineForASlowStep(t *testing.T) {
	for name, c := range map[string]struct {
		terminal bool
		want     string
	}{
		"on a terminal": {true, "|\r\x1b[Kevaluating a (1 of 2)…|\r\x1b[K|\r\x1b[Kevaluating b� (2 of 2)…|\r\x1b[Kevaluating b� (2 of 2)… 1s|" +
			"\r\x1b[Kevaluating b� (2 of 2)… 10s|\r\x1b[Kevaluating b� (2 of 2)… 11s|\r\x1b[K"},
		"elsewhere": {false, "|evaluating b� (2 of 2)…\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out lines
			var second func(time.Duration)
			p := &Progress{w: &out, terminal: c.terminal, tick: func(f func(time.Duration)) func() {
				second = f
				return func() {}
			}}
			p.Step("evaluating %s (%d of %d)", "a", 1, 2)
			late := second
			p.Step("evaluating %s (%d of %d)", "b\x1b", 2, 2)
			late(time.Second)
			second(time.Second)
			second(10 * time.Second)
			second(11 * time.Second)
			p.Done()
			p.Done()
			// A second of a step that ended shows nothing, as above.
			second(20 * time.Second)
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
	(*Progress)(nil).Step("nothing")
	(*Progress)(nil).Done()
}

// TestProgressFitsATerminal: a line that wraps could not be written anew.
func TestProgressFitsATerminal(t *testing.T) {
	screen := terminal.New(t, 30, 8)
	var second func(time.Duration)
	p := &Progress{w: screen.File, terminal: true, tick: func(f func(time.Duration)) func() {
		second = f
		return func() {}
	}}
	p.Step("pulling %s\nand more", strings.Repeat("registry", 20))
	second(time.Hour + 59*time.Minute + 59*time.Second)
	p.Done()
	for part := range strings.SplitSeq(screen.Written(t), "\r\x1b[K") {
		if n := len([]rune(part)); n > 30 || strings.Contains(part, "\n") {
			t.Errorf("%d columns of 30: %q", n, part)
		}
	}
}

// lines has a bar before each write.
type lines struct{ strings.Builder }

func (l *lines) Write(p []byte) (int, error) {
	l.WriteString("|")
	return l.WriteString(string(p))
}
