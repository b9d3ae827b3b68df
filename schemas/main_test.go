package schemas_test

import (
	"os"
	"testing"

	"github.com/skep-dev/skep/schemas"
)

// TestMain lets the test binary be its own renderer, as every binary that
// loads definitions does.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	os.Exit(m.Run())
}
