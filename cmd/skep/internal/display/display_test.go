package display

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/test/harness/terminal"
)

// TestWhatIsNoTerminalIsNone: a null device is a character device, and no person looks at it.
func TestWhatIsNoTerminalIsNone(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	screen := terminal.New(t, 80, 24).File
	for _, c := range []struct {
		w    io.Writer
		term string
		want bool
	}{{null, "xterm", false}, {new(bytes.Buffer), "xterm", false}, {screen, "xterm", true}, {screen, "", true}, {screen, "dumb", false}} {
		t.Setenv("TERM", c.term)
		if got := Terminal(c.w); got != c.want {
			t.Errorf("%T with TERM=%s: %v", c.w, c.term, got)
		}
	}
}

// TestDataHoldsNoCommandForATerminal, and says the same all the same.
func TestDataHoldsNoCommandForATerminal(t *testing.T) {
	for want, v := range map[string]any{
		`{"a":"<b>&é"}`:         map[string]any{"a": "<b>&é"},
		`"\u001b[31m \u009b2J"`: "\x1b[31m \u009b2J",
		`"\u202e\udb40\udc01"`:  "\u202e\U000e0001",
		`"\ufffd\u007f\n"`:      "\xff\x7f\n",
		"\"\u00a0\u3000\"":      "\u00a0\u3000",
	} {
		if got, err := JSONLine(v); got != want || err != nil {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	hostile := map[string]string{"a": "x\x1b[2J\u009b2J\u202e\u2067y\nz", "b": "\x7f\u0085\ufeff", "c": "\U000e0001"}
	for format, parse := range map[string]func([]byte, any) error{
		"json": json.Unmarshal, "yaml": func(doc []byte, into any) error { return yaml.Unmarshal(doc, into) }} {
		var out bytes.Buffer
		if err := Data(&out, format, hostile); err != nil || strings.ContainsAny(out.String(), "\x1b\u009b\u202e\u2067") {
			t.Errorf("-o %s: %v, %q", format, err, &out)
		}
		var read map[string]string
		if err := parse(out.Bytes(), &read); err != nil || !maps.Equal(read, hostile) {
			t.Errorf("-o %s is read as %q, %v", format, read, err)
		}
	}
}

func TestNothingIsCutInsideAWord(t *testing.T) {
	for want, items := range map[string][]string{
		"":                              nil,
		"xdp@a-very-long-interface":     {"xdp@a-very-long-interface"},
		"xdp@a-very-long-interface, +1": {"xdp@a-very-long-interface", "xdp@b"},
		"xdp@a, xdp@b":                  {"xdp@a", "xdp@b"},
		"xdp@a, +2":                     {"xdp@a", "xdp@b", "xdp@c"},
	} {
		if got := Fit(items, 14); got != want {
			t.Errorf("%q is shown as %q, want %q", items, got, want)
		}
	}
}
