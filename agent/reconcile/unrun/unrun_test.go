package unrun

import (
	"testing"
	"time"
)

func TestWhatNeverRanIsToldOfOnlyWhereItsDeviceCountedPackets(t *testing.T) {
	type look struct {
		runs, packets uint64
		after         time.Duration
		want          uint64
	}
	const later = time.Minute
	for sentence, looks := range map[string][]look{
		"packets of before it was attached do not count":        {{0, 90, 0, 0}, {0, 90, later, 0}, {0, 90, later, 0}},
		"a packet counts at the look after the one that saw it": {{0, 90, 0, 0}, {0, 95, later, 0}, {0, 96, later, 5}, {0, 96, later, 6}},
		"a packet that is on its way does not count":            {{0, 90, 0, 0}, {0, 95, later, 0}, {0, 95, time.Millisecond, 0}, {1, 95, later, 0}},
		"what ran once has run":                                 {{0, 90, 0, 0}, {1, 95, later, 0}, {0, 99, later, 0}, {0, 99, later, 0}},
		"what runs at last is told of no more":                  {{0, 0, 0, 0}, {0, 5, later, 0}, {0, 5, later, 5}, {2, 9, later, 0}},
		"a device that counts anew begins anew":                 {{0, 90, 0, 0}, {0, 95, later, 0}, {0, 3, later, 0}, {0, 3, later, 0}},
		"a look soon after another keeps what it said":          {{0, 0, 0, 0}, {0, 5, later, 0}, {0, 5, later, 5}, {0, 9, time.Millisecond, 5}},
	} {
		var w Watch
		now := time.Unix(1000, 0)
		for i, l := range looks {
			now = now.Add(l.after)
			if got := w.Note(Key{}, l.runs, l.packets, now); got != l.want {
				t.Errorf("%s: look %d says %d, want %d", sentence, i, got, l.want)
			}
		}
	}
}
