package application

import (
	"testing"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/workers"
)

// engine evaluates the policies of all tests.
var engine = policies.NewEngine(policies.EngineOptions{})

func TestMain(m *testing.M) { workers.Main(m, engine) }
