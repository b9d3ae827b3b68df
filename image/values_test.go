package image_test

import (
	"testing"

	"github.com/skep-dev/skep/image"
)

func TestValues(t *testing.T) {
	for text, want := range map[string]int{
		``: 0, `1`: 0, `[]`: 1, `[0,0,0]`: 3, `{"a":1,"b":[{},{}]}`: 6,
		`",,,[{"`: 0, `"\",,,"`: 0, `["\\",0]`: 2, `"\\",,`: 2, `"é",`: 1,
	} {
		if got := image.Values([]byte(text)); got != want {
			t.Errorf("%s holds %d values, want %d", text, got, want)
		}
		var parts image.ValueCounter
		for i := range len(text) {
			_, _ = parts.Write([]byte{text[i]})
		}
		if parts.Count != want {
			t.Errorf("%s holds %d values byte by byte, want %d", text, parts.Count, want)
		}
	}
}
