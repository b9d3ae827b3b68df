package agent

import (
	"slices"
	"testing"
	"time"
)

func TestAContestIsForgottenWhenItsLinkWasLeftAlone(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &pass{now: start, Agent: &Agent{driftConflicts: map[string]*driftConflict{
		"lost just now":             {heals: 1, last: start.Add(-time.Second)},
		"lost long ago":             {heals: 1, last: start.Add(-driftConflictWindow - time.Second)},
		"waits to be put back":      {heals: 9, last: start.Add(-driftConflictWindow - time.Second), next: start.Add(time.Second)},
		"was put back for good now": {heals: 9, last: start.Add(-driftConflictWindow - time.Second), next: start.Add(-time.Second)},
	}}}
	p.endDriftConflicts()
	var left []string
	for key := range p.driftConflicts {
		left = append(left, key)
	}
	slices.Sort(left)
	if want := []string{"lost just now", "waits to be put back"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
