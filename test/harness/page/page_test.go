package page_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/harness/page"
)

func TestWhatAPageShowsIsCompared(t *testing.T) {
	for name, c := range map[string]struct {
		shown, got string
		same       bool
	}{
		"the same":                         {"a\nb\n", "a\nb\n", true},
		"another":                          {"a\n", "b\n", false},
		"more than is shown":               {"a\n", "a\nb\n", false},
		"less than is shown":               {"a\nb\n", "a\n", false},
		"nothing is shown of what is said": {"", "a\n", false},
		"other widths of columns":          {"A   B\nx   y", "A B\nx y\n", true},
		"another age and digest":           {"x 7s sha256:ab", "x 1m3s sha256:cd\n", true},
		"another commit, cut":              {"main@sha1:ab…/sha256:cd…", "main@sha1:0123/sha256:4567", true},
		"another number":                   {"x 7", "x 8", false},
		"anything in a line":               {"a … c", "a b c\n", true},
		"anything in any lines":            {"…\nc\n…", "a\nb\nc\nd\n", true},
		"a line that is missing":           {"…\nc\n…", "a\nb\nd\n", false},
	} {
		if got := page.Says(c.shown, c.got); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStepsAreCommandsAndFiles(t *testing.T) {
	body := "# P\n\n## One\n\n`a/b.yaml`:\n\n```yaml\nx: 1\n```\n\nThen `y.cue`, in CUE:\n\n```cue\ny: 2\n```\n\n```console\n$ cat a/b.yaml\nx: " +
		"1\n$ cd a\n```\n\n## Two\n"
	want := []page.Step{
		{File: "a/b.yaml", Content: "x: 1\n"}, {File: "y.cue", Content: "y: 2\n"},
		{Command: "cat a/b.yaml", Shown: "x: 1"}, {Command: "cd a"},
	}
	got := page.Steps(t, body, "## One", "## Two")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	home := t.TempDir()
	reader := page.Reader{Home: home, At: home}
	for _, s := range got {
		reader.Do(t, s)
	}
	if reader.At != home+"/a" {
		t.Errorf("the reader is at %s", reader.At)
	}
}

// TestPagesHaveStepsToWalk holds the pages that are walked to the headings and blocks that their tests read.
func TestPagesHaveStepsToWalk(t *testing.T) {
	for _, c := range []struct {
		name, from, to  string
		commands, files int
	}{
		{"getting-started-cluster.md", "## 1. Install", "## 5. Uninstall", 15, 1},
		{"getting-started-cluster.md", "## 5. Uninstall", "## On kind", 4, 0},
		{"pods.md", "## A team traces its own pods", "## Choose pods", 17, 2},
		{"gitops.md", "## 1. The repository", "## 3. A denied commit, and a deletion", 10, 4},
		{"gitops.md", "## 3. A denied commit, and a deletion", "## 4. CUE", 6, 0},
		{"gitops.md", "## 4. CUE", "## Without Flux", 7, 2},
	} {
		var commands, files int
		for _, s := range page.Steps(t, page.Read(t, c.name), c.from, c.to) {
			if s.File != "" {
				files++
			} else {
				commands++
			}
		}
		if commands != c.commands || files != c.files {
			t.Errorf("%s, from %q to %q: %d commands and %d files, want %d and %d", c.name, c.from, c.to, commands, files, c.commands, c.files)
		}
	}
}

// TestWhatABusyMachineLetInIsDeniedTheNextTime has another program in the place of kubectl, which lets an object in
// unverified, and denies it when it is not there.
func TestWhatABusyMachineLetInIsDeniedTheNextTime(t *testing.T) {
	home := t.TempDir()
	kubectl := `#!/bin/bash
case "$1" in
delete) rm ~/there;;
apply)
	if [ -e ~/there ]; then echo unchanged
	elif [ -e ~/known ]; then echo 'the webhook denied the request: no signer'
	else touch ~/there ~/known; echo 'Warning: it is not verified yet, and nothing is loaded until it is: late'; echo created
	fi;;
esac
`
	if err := os.WriteFile(filepath.Join(home, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	r := page.Reader{Home: home, At: home, Env: []string{"PATH=" + home + ":" + os.Getenv("PATH")}}
	r.Do(t, page.Step{Command: "kubectl apply -f -", Shown: "the webhook denied the request: no signer\n"})
}
