package pins_test

import (
	"errors"
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestOneAgentHoldsTheDirectory(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	_, stop := w.Start()
	other := w.Options()
	other.StateDir = t.TempDir()
	if _, err := agent.New(other); !errors.Is(err, pins.ErrHeld) {
		t.Errorf("New = %v", err)
	}
	stop()
	a, err := agent.New(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	other.BPFFS = t.TempDir()
	if _, err := agent.New(other); !errors.Is(err, pins.ErrNotBPFFS) {
		t.Errorf("New outside of a bpffs = %v", err)
	}
}
