package schemas_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// parentVariable makes the test binary a process that loads the folder it
// names, for a test to kill.
const parentVariable = "SKEP_SCHEMAS_TEST_PARENT"

// TestMain lets the test binary be its own renderer, as every binary that
// loads definitions does.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	if dir := os.Getenv(parentVariable); dir != "" {
		_, err := schemas.Load(context.Background(), schemas.Options{Root: dir, Timeout: time.Hour})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leaks.Main(m)
}
