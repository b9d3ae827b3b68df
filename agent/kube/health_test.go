package kube

import (
	"strings"
	"testing"
	"time"
)

func TestAnAgentIsUnhealthyWhereATurnDoesNotEnd(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for sentence, c := range map[string]struct {
		// begins and turns are when the first turn began and when turns ended.
		begins time.Duration
		turns  []time.Duration
		now    time.Duration
		want   string
	}{
		"it waits for its node's labels":       {begins: -1, now: time.Hour},
		"its first turn takes a while":         {now: 4 * time.Minute},
		"its first turn does not end":          {now: 6 * time.Minute, want: "no turn ended for 6m0s"},
		"turns end":                            {turns: []time.Duration{time.Second, time.Hour}, now: time.Hour + time.Minute},
		"a later turn does not end":            {turns: []time.Duration{time.Hour}, now: time.Hour + 6*time.Minute, want: "no turn ended for 6m0s"},
		"it waited long before its first turn": {begins: time.Hour, now: time.Hour + time.Minute},
	} {
		t.Run(sentence, func(t *testing.T) {
			now := start
			a := &Agent{health: health{now: func() time.Time { return now }}}
			if c.begins >= 0 {
				now = start.Add(c.begins)
				a.health.begins()
			}
			for _, at := range c.turns {
				now = start.Add(at)
				a.health.passed()
			}
			now = start.Add(c.now)
			if err := a.healthy(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("healthy = %v, want %q", err, c.want)
			}
		})
	}
}
