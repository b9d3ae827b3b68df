package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALongDescriptionIsSplitAtItsSentences(t *testing.T) {
	sentence := strings.Repeat("a word ", 20) + "ends."
	for what, c := range map[string]struct{ text, head, rest string }{
		"one that fits":       {sentence, sentence, ""},
		"two sentences":       {sentence + " " + sentence, sentence, sentence},
		"parts of a sentence": {strings.TrimSuffix(sentence, ".") + ": " + sentence, sentence, sentence},
		"a word without end":  {strings.Repeat("a", 300), strings.Repeat("a", 300), ""},
	} {
		if head, rest := parted(c.text); head != c.head || rest != c.rest {
			t.Errorf("%s: %q, %q", what, head, rest)
		}
	}
}

func TestThePageFitsAWindow(t *testing.T) {
	long := strings.Repeat("KIND is one. ", 30)
	file := filepath.Join(t.TempDir(), "api.md")
	if err := run(crds(t, strings.NewReplacer("description: KIND is one.", "description: "+long, "or c.", long).Replace(thing), "Thing", "Cluster"),
		file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(got), intro)
	for line := range strings.SplitSeq(page, "\n") {
		if len(line) > widestLine && !strings.HasPrefix(line, "|") {
			t.Errorf("a line of %d: %s", len(line), line)
		}
	}
	if n := strings.Count(page, "Thing is one."); n != 60 {
		t.Errorf("%d of 60 sentences are on the page", n)
	}
	if !strings.Contains(page, "\n- `spec.name`: Thing is one.") {
		t.Errorf("the rest of a description is not below the table:\n%s", page)
	}
}
