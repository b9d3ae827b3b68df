package programs_test

import (
	"testing"

	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/leaks"
)

func TestMain(m *testing.M) {
	world.MaybeChild()
	leaks.Main(m)
}
