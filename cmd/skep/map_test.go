package main

import "testing"

func TestALineHoldsNoCommandForATerminal(t *testing.T) {
	for want, v := range map[string]any{
		`{"a":"<b>&é"}`:         map[string]any{"a": "<b>&é"},
		`"\u001b[31m \u009b2J"`: "\x1b[31m \u009b2J",
		`"\u202e\udb40\udc01"`:  "\u202e\U000e0001",
		`"\ufffd\u007f\n"`:      "\xff\x7f\n",
	} {
		if got, err := oneLine(v); got != want || err != nil {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
