package images

import (
	"testing"

	"github.com/skep-dev/skep/test/workers"
)

func TestMain(m *testing.M) { workers.Main(m) }
