package unrun

import (
	"strconv"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/plan"
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
		"of what runs at last nothing is said any more":         {{0, 0, 0, 0}, {0, 5, later, 0}, {0, 5, later, 5}, {2, 9, later, 0}},
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

// loopback is a device that each network namespace has.
var loopback = plan.Device{Index: 1}

// TestThousandsThatDoNotRunTakeNoTime: a node has 8,000 places and more, and each reconcile asks for all of them.
func TestThousandsThatDoNotRunTakeNoTime(t *testing.T) {
	const many = 30_000
	var w Watch
	now, began := time.Unix(1000, 0), time.Now()
	for range 2 {
		now = now.Add(time.Minute)
		r := w.Begin(nil)
		for i := range many {
			r.Of(Key{UID: strconv.Itoa(i), Hook: plan.XDP, On: loopback}, now, func() (uint64, bool) { return 0, true })
		}
	}
	if len(w.known) == 0 {
		t.Fatal("none is known")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("%d programs took %v", many, took)
	}
	now = now.Add(2 * forgetAfter)
	w.Begin(nil).Of(Key{Hook: plan.XDP, On: loopback}, now, func() (uint64, bool) { return 0, true })
	if len(w.known) != 1 {
		t.Errorf("%d are remembered that were not asked for", len(w.known)-1)
	}
}

// TestDevicesAreAskedForABoundedTime and where something counts alone.
func TestDevicesAreAskedForABoundedTime(t *testing.T) {
	var w Watch
	now, no := time.Unix(1000, 0), false
	k := Key{Hook: plan.XDP, On: loopback}
	r := w.Begin(nil)
	r.counts = &no
	if r.OfProgram(k, now, 1); len(r.packets) > 0 {
		t.Error("a device was asked, and nothing counts")
	}
	w.Note(k, 0, 0, now)
	w.Note(k, 0, 5, now.Add(time.Minute))
	w.Note(k, 0, 6, now.Add(2*time.Minute))
	none := func() (uint64, bool) { t.Error("it was asked again"); return 0, true }
	r = w.Begin(nil)
	r.spent = asking
	for _, after := range []time.Duration{2*time.Minute + time.Millisecond, 3 * time.Minute} {
		if got := r.Of(k, now.Add(after), none); got != 5 || len(r.packets) > 0 {
			t.Errorf("%v after the first look it says %d, and asked %v", after, got, r.packets)
		}
	}
}
