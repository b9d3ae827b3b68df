package story_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/skep-dev/skep/demo/story"
)

func TestAnActSaysWhatIsAtStake(t *testing.T) {
	var out bytes.Buffer
	n := story.Narrator{Out: &out}
	n.Act("First", "Much.")
	n.Act("Second", "More.")
	n.Good("it went %s", "well")
	const want = "\n1. First\n   Much.\n\n2. Second\n   More.\n   ✓ it went well\n"
	if out.String() != want {
		t.Errorf("it tells\n%s\nwant\n%s", out.String(), want)
	}
}

func TestShortenCutsWholeDigestsAlone(t *testing.T) {
	whole := strings.Repeat("0123456789ab", 6)[:64]
	for text, want := range map[string]string{
		"image sha256:" + whole + " is gone":   "image sha256:0123456789ab… is gone",
		"tag sha256-" + whole + ".sig":         "tag sha256-0123456789ab….sig",
		"sha256:" + whole[:40] + " is no such": "sha256:" + whole[:40] + " is no such",
	} {
		if got := story.Shorten(text); got != want {
			t.Errorf("%q is shortened to %q, want %q", text, got, want)
		}
	}
}
