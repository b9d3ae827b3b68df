package images

import (
	"os"
	"testing"

	"github.com/skep-dev/skep/policies"
)

// TestMain lets the test binary be the worker that policies are evaluated in.
func TestMain(m *testing.M) {
	policies.MaybeWorkerChild()
	os.Exit(m.Run())
}
