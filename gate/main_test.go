package gate_test

import (
	"os"
	"testing"

	"github.com/skep-dev/skep/policies"
)

// engine evaluates the policies of all tests.
var engine = policies.NewEngine(policies.EngineOptions{})

// TestMain lets the test binary be the worker that policies are evaluated in.
func TestMain(m *testing.M) {
	policies.MaybeWorkerChild()
	code := m.Run()
	engine.Close()
	os.Exit(code)
}
