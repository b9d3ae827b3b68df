package e2e

import (
	"testing"

	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/page"
)

// tutorial is the page that is walked.
const tutorial = "getting-started-cluster.md"

// walk does what the tutorial says between two headings, from the repository's folder, as a reader whose
// home is empty.
func (n *node) walk(from, to string) {
	n.t.Helper()
	reader := page.Reader{Home: n.path("home"), At: module.Root()}
	for _, s := range page.Steps(n.t, page.Read(n.t, tutorial), from, to) {
		reader.Do(n.t, s)
	}
}

// TestTheTutorialHasStepsToWalk needs no cluster: it holds the page to the headings and blocks
// that walk reads.
func TestTheTutorialHasStepsToWalk(t *testing.T) {
	body := page.Read(t, tutorial)
	for _, c := range []struct {
		from, to        string
		commands, files int
	}{
		{"## 1. Install", "## 5. Uninstall", 14, 1},
		{"## 5. Uninstall", "## On kind", 4, 0},
	} {
		var commands, files int
		for _, s := range page.Steps(t, body, c.from, c.to) {
			if s.File != "" {
				files++
			} else {
				commands++
			}
		}
		if commands != c.commands || files != c.files {
			t.Errorf("from %q to %q: %d commands and %d files, want %d and %d", c.from, c.to, commands, files, c.commands, c.files)
		}
	}
}
