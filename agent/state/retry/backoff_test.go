package retry

import (
	"testing"
	"time"
)

func TestBackOffDoublesUpToItsMost(t *testing.T) {
	b := BackOff{First: time.Second, Most: 10 * time.Second}
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 1000: 10 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 50 {
			got := b.After(failures)
			seen[got] = true
			if got < want || got > want+want/4 {
				t.Errorf("after %d failures: %v, want %v and up to a quarter", failures, got, want)
			}
		}
		if len(seen) < 2 {
			t.Errorf("after %d failures: no jitter", failures)
		}
	}
}
