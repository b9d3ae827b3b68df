package imagestore

import (
	"testing"

	"github.com/skep-dev/skep/test/harness/workers"
)

func TestMain(m *testing.M) { workers.Main(m) }
