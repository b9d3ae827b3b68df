package retry

import (
	"slices"
	"testing"
	"time"
)

func TestAContestIsForgottenWhenItsLinkWasLeftAlone(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := Conflicts{byPin: map[string]*conflict{
		"lost just now":             {heals: 1, last: start.Add(-time.Second)},
		"lost long ago":             {heals: 1, last: start.Add(-conflictWindow - time.Second)},
		"waits to be put back":      {heals: 9, last: start.Add(-conflictWindow - time.Second), next: start.Add(time.Second)},
		"was put back for good now": {heals: 9, last: start.Add(-conflictWindow - time.Second), next: start.Add(-time.Second)},
	}}
	c.Sweep(start)
	var left []string
	for key := range c.byPin {
		left = append(left, key)
	}
	slices.Sort(left)
	if want := []string{"lost just now", "waits to be put back"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
