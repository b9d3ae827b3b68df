package ui_test

import (
	"testing"

	"github.com/skep-dev/skep/test/harness/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }
