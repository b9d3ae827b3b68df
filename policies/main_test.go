package policies_test

import (
	"testing"
	"time"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/workers"
)

// engine is the one of all tests that need none of their own.
var engine = policies.NewEngine(policies.EngineOptions{})

// patience is how long a busy machine may take to compile a policy.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	policies.Wait(engine, patience)
	workers.Main(m, engine)
}
