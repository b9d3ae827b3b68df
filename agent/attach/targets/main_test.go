package targets

import (
	"testing"

	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) { tasks.Main(m) }
