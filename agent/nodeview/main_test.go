package nodeview_test

import (
	"testing"

	"github.com/skep-dev/skep/test/harness/events"
	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) {
	events.MaybeChild()
	tasks.Main(m)
}
