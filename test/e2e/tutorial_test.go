package e2e

import (
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/page"
)

// The pages that are walked, below docs.
const (
	tutorialPage = "getting-started-cluster.md"
	podsPage     = "pods.md"
	readersPage  = "user-space.md"
)

// walk does what a page says between two headings, from the repository's folder, as a reader who did
// what the pages before say.
func (n *node) walk(name, from, to string) {
	n.t.Helper()
	reader := page.Reader{Home: n.path("home"), At: module.Root()}
	for _, s := range page.Steps(n.t, page.Read(n.t, name), from, to) {
		reader.Do(n.t, s)
	}
}
