package e2e

import (
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
