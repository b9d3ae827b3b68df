package admission_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/test/fixture/node"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs the cases of testdata: the intents, what the node has and remembers, what became of
// each application, the actions that follow, and what the node remembers then. The lines are those of node.Case.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		run := func() []txtar.File { return admit(t, node.Read(t, string(a.Files[0].Data), string(a.Files[1].Data))) }
		first := run()
		for range 4 {
			if diff := cmp.Diff(first, run()); diff != "" {
				t.Fatalf("another run decides otherwise: %s", diff)
			}
		}
		return first
	})
}

// admit admits, and writes what follows.
func admit(t *testing.T, c *node.Case) []txtar.File {
	t.Helper()
	a := c.Start(t)
	r := a.Begin()
	r.Admission.Admit()
	actions, outcomes := c.Actions(r), c.Outcomes(r.Decisions)
	r.Admission.Remember()
	var remembered strings.Builder
	for _, r := range slices.SortedFunc(maps.Values(a.Admission.History.Clone()), func(x, y history.Record) int {
		return strings.Compare(fmt.Sprint(x), fmt.Sprint(y))
	}) {
		fmt.Fprintln(&remembered, r.UID, r.Revision, r.Hook, r.Interface, strings.Join(r.Programs, " "))
	}
	return []txtar.File{c.Part("outcomes", outcomes), c.Part("actions", actions), c.Part("remembered", remembered.String())}
}
