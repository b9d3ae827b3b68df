package policies_test

import (
	"os"
	"testing"
	"time"

	"github.com/skep-dev/skep/policies"
)

// engine is the one of all tests that need none of their own.
var engine = policies.NewEngine(policies.EngineOptions{})

// patience is how long a busy machine may take to compile a policy.
const patience = 5 * time.Minute

// TestMain lets the test binary be its own worker, as every binary that has an
// Engine does.
func TestMain(m *testing.M) {
	policies.MaybeWorkerChild()
	policies.Wait(engine, patience)
	code := m.Run()
	engine.Close()
	os.Exit(code)
}
