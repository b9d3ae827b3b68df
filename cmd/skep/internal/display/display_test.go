package display

import "testing"

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
