package lifecycle

import "testing"

func TestUnloadProtectionHoldsAMassDenialOnly(t *testing.T) {
	for _, c := range []struct {
		running, denied int
		held            bool
	}{{1, 1, false}, {10, 1, false}, {2, 2, true}, {20, 2, false}, {19, 2, true}, {1000, 100, false}, {1000, 101, true}, {0, 0, false}} {
		if got := NeedsConfirmation(c.running, c.denied); got != c.held {
			t.Errorf("NeedsConfirmation(%d, %d) = %v, want %v", c.running, c.denied, got, c.held)
		}
	}
}
