// Package workers runs the tests of a package that has policies evaluated. The test
// binary is the worker then, as every binary that has an Engine is its own.
package workers

import (
	"os"
	"testing"

	"github.com/skep-dev/skep/policies"
)

// Main is what a package's TestMain does. It closes the engines after the tests, and
// never returns.
func Main(m *testing.M, engines ...*policies.Engine) {
	policies.MaybeWorkerChild()
	code := m.Run()
	for _, e := range engines {
		e.Close()
	}
	os.Exit(code)
}
