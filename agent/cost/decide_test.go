package cost

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestProgramsAreComparedByID: what a program did between two samples.
func TestProgramsAreComparedByID(t *testing.T) {
	at := func(ms int, id uint32, runs, ns uint64) sample {
		return sample{id, runs, ns, runs / 10, time.UnixMilli(int64(ms))}
	}
	is := func(id uint32, runs, ns, misses uint64, ms int) difference {
		return difference{Sample{id, runs, ns}, misses, time.Duration(ms) * time.Millisecond}
	}
	for sentence, c := range map[string]struct {
		before, after []sample
		want          []difference
	}{
		"nothing runs":     {},
		"one that ran":     {[]sample{at(0, 7, 10, 100)}, []sample{at(1000, 7, 30, 900)}, []difference{is(7, 20, 800, 3, 1000)}},
		"one that did not": {[]sample{at(0, 7, 10, 100)}, []sample{at(1000, 7, 10, 100)}, []difference{is(7, 0, 0, 1, 1000)}},
		"each has the length between its own two samples": {
			[]sample{at(0, 1, 0, 0), at(5, 2, 0, 0)}, []sample{at(1000, 1, 1, 1), at(1009, 2, 2, 2)},
			[]difference{is(1, 1, 1, 0, 1000), is(2, 2, 2, 0, 1004)},
		},
		"one that was loaded counts from zero": {
			[]sample{at(0, 7, 10, 100)}, []sample{at(1000, 7, 10, 100), at(1000, 9, 5, 50)},
			[]difference{is(7, 0, 0, 1, 1000), is(9, 5, 50, 0, 1000)},
		},
		"one that was unloaded is left out": {
			[]sample{at(0, 7, 10, 100), at(0, 8, 1, 1)}, []sample{at(1000, 8, 2, 3)},
			[]difference{is(8, 1, 2, 0, 1000)},
		},
		"an id that another has now counts from zero":  {[]sample{at(0, 7, 10, 100)}, []sample{at(1000, 7, 3, 30)}, []difference{is(7, 3, 30, 0, 1000)}},
		"with nothing before, the length is not known": {nil, []sample{at(1000, 7, 3, 30)}, []difference{is(7, 3, 30, 0, 0)}},
		"an id between others that are the same is a new one": {[]sample{at(0, 1, 1, 1), at(0, 9, 1, 1)}, []sample{at(10, 1, 2, 2), at(10, 4, 4, 4), at(10, 9, 3, 3)},
			[]difference{is(1, 1, 1, 0, 10), is(4, 4, 4, 0, 10), is(9, 2, 2, 0, 10)}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(c.want, differences(c.before, c.after), cmp.AllowUnexported(difference{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAWindowEndsWhenEnoughWasCounted: what its look is followed by.
func TestAWindowEndsWhenEnoughWasCounted(t *testing.T) {
	const ms = time.Millisecond
	for sentence, c := range map[string]struct {
		elapsed time.Duration
		runs    uint64
		want    time.Duration
	}{
		"nothing runs":                          {50 * ms, 0, 200 * ms},
		"nothing runs still":                    {250 * ms, 0, 750 * ms},
		"a second is over":                      {Length, 0, 0},
		"the look was late":                     {3 * Length, 10, 0},
		"the end is near, and few runs":         {950 * ms, 0, 0},
		"few runs":                              {50 * ms, 1000, 200 * ms},
		"as many as there may be in a second":   {250 * ms, mostRuns / 4, 750 * ms},
		"twice as many":                         {250 * ms, mostRuns / 2, 250 * ms},
		"ten times as many: it ends at a tenth": {50 * ms, mostRuns / 2, 50 * ms},
		"nearly enough":                         {100 * ms, mostRuns - 10, 0},
		"enough":                                {50 * ms, mostRuns, 0},
		"far more than enough, on many CPUs":    {50 * ms, 100 * mostRuns, 0},
		"a burst after the first look ends at the second": {250 * ms, mostRuns + 1, 0},
	} {
		if got := more(c.elapsed, c.runs, mostRuns); got != c.want {
			t.Errorf("%s: after %v with %d runs it lasts %v more, want %v", sentence, c.elapsed, c.runs, got, c.want)
		}
	}
}

// TestAWindowStandsForItsInterval whatever its length was; a window without one adds nothing.
func TestAWindowStandsForItsInterval(t *testing.T) {
	var total Total
	for _, length := range []time.Duration{time.Second, 2 * time.Second, 0} {
		total = total.plus(difference{Sample{1, 100, 5e8}, 4, length})
	}
	if want := (Total{Runs: 1500 + 750, Seconds: 7.5 + 3.75, Misses: 4}); total != want {
		t.Errorf("%+v, want %+v", total, want)
	}
}

// TestEachIntervalHasOneWindow, whole in it, at a time that differs between nodes and between intervals, and is spread over all of it.
func TestEachIntervalHasOneWindow(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	phases := map[time.Duration]int{}
	const tenths = 10
	for n := range 2000 {
		for _, node := range []string{"node-1", "node-2", fmt.Sprint("node-", n)} {
			from := at.Add(time.Duration(n) * Interval)
			begin := next(node, from.Add(time.Duration(n)*7*time.Millisecond))
			phase := begin.Sub(from.Add(Interval))
			if phase < 0 || phase > Interval-Length {
				t.Fatalf("%s: a window %v after the interval began", node, phase)
			}
			if node == "node-1" && begin.Equal(next("node-2", from)) {
				t.Errorf("two nodes measure at %v", begin)
			}
			phases[phase*tenths/(Interval-Length)]++
		}
	}
	for tenth := range time.Duration(tenths) {
		if n := phases[tenth]; n < 450 || n > 750 {
			t.Errorf("%d of 6000 windows are in tenth %d of an interval: %v", n, tenth, phases)
		}
	}
	if now := at.Add(time.Hour); !next("a", now).Equal(next("a", now)) {
		t.Error("the same interval has two windows")
	}
}

// TestWhatIsKeptIsBounded: windows, and programs of each; those that took most.
func TestWhatIsKeptIsBounded(t *testing.T) {
	c := New(Options{})
	for range kept + 5 {
		var all []difference
		for id := range uint32(MaxPrograms) {
			all = append(all, difference{Sample{id, 1, uint64(id)}, 0, time.Second})
		}
		c.keep(time.Now(), 0, all)
	}
	windows := c.Windows()
	if len(windows) != kept || len(windows[0].Programs) != keptOfEach || cap(windows[0].Programs) > 2*keptOfEach || windows[0].Programs[0].ID != MaxPrograms-1 {
		t.Errorf("%d windows, of %d programs, with room for %d, first %+v", len(windows), len(windows[0].Programs), cap(windows[0].Programs), windows[0].Programs[0])
	}
	if len(c.Latest()) != MaxPrograms {
		t.Errorf("%d programs have a cost", len(c.Latest()))
	}
	// A program that is gone is forgotten, and one that did not run is no row of a plot.
	c.keep(time.Now(), 0, []difference{{Sample{7, 0, 0}, 0, time.Second}})
	if len(c.Latest()) != 1 || len(c.Totals()) != 1 || len(c.Windows()[kept-1].Programs) != 0 {
		t.Errorf("%v, %v", c.Latest(), c.Totals())
	}
}
