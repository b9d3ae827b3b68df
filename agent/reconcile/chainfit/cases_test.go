package chainfit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/test/fixture/node"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs the cases of testdata: the intents, what the node has and what the kernel rejects; the actions while
// chains are loaded, the loads, and what became of each application and the actions once no more is loaded. The lines
// are those of node.Case.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		run := func() []txtar.File { return fit(t, node.Read(t, string(a.Files[0].Data), string(a.Files[1].Data))) }
		first := run()
		for range 4 {
			if diff := cmp.Diff(first, run()); diff != "" {
				t.Fatalf("another run decides otherwise: %s", diff)
			}
		}
		return first
	})
}

// newFitter returns a Fitter that knows nothing yet.
func newFitter() *chainfit.Fitter {
	backOff := retry.BackOff{First: time.Second, Most: time.Minute}
	return chainfit.New(backOff.Longest(), retry.NewAttempts(backOff))
}

// fit admits and fits until no load is left and nothing was put off, and writes what follows.
func fit(t *testing.T, c *node.Case) []txtar.File {
	t.Helper()
	a, fitter, meanwhile := c.Start(t), newFitter(), ""
	fitter.Build = c.Verifier.Build
	for turn := range 20 {
		r := a.Begin()
		r.Admission.Admit()
		fitter.Begin(r.Decisions, r.Admission, r.Objects, r.Loads).Fit()
		if turn == 0 {
			meanwhile = c.Actions(r)
		}
		if len(r.Loads.Queued) == 0 && !r.Decisions.Again {
			return []txtar.File{c.Part("meanwhile", meanwhile), c.Part("loads", c.Verifier.Loads()), c.Part("outcomes", c.Outcomes(r.Decisions)),
				c.Part("actions", c.Actions(r))}
		}
		if err := a.Loads.Keep(r.Loads); err != nil {
			t.Fatal(err)
		}
		a.Load(r)
	}
	t.Fatal("there is no end to the loads")
	return nil
}
