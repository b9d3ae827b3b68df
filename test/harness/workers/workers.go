// Package workers runs the tests of packages that have policies evaluated, or CUE rendered.
//
// The test binary is its own confined child then, as Skep's binaries are. Under make test, the
// children are one small binary instead: what starts in a third of the time, hundreds of times.
package workers

import (
	"context"
	"os"
	"testing"

	"github.com/skep-dev/skep/confined"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/command"
)

// Variable names the small binary in the environment of tests.
const Variable = "SKEP_CONFINED_CHILD"

// Link links the small binary, and returns what tells test binaries of it.
func Link(ctx context.Context) (variable string, err error) {
	path, err := command.Cached(ctx, "./test/harness/workers/confinedchild")
	return Variable + "=" + path, err
}

// Main is what a package's TestMain does. It closes the engines after the tests, and
// never returns.
func Main(m *testing.M, engines ...*policies.Engine) {
	policies.MaybeWorkerChild()
	Use()
	code := m.Run()
	for _, e := range engines {
		e.Close()
	}
	os.Exit(code)
}

// Use has the children of this process be the small binary, where the environment names it. A TestMain
// that does without Main calls it after what makes the test binary a child.
func Use() {
	if path := os.Getenv(Variable); path != "" {
		confined.Execute(path)
	}
}
