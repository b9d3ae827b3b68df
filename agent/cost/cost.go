// Package cost measures what each program of the kernel costs: it enables the kernel's statistics (BPF_ENABLE_STATS) for up to a
// second of every fifteen, and compares the counters of all programs, Skep's or not. It must not delay the agent's loop, keep a program loaded, nor
// switch off statistics that someone else has enabled.
package cost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
)

// How often programs are measured and for how long at most: each interval has one window, at a time of its own.
const (
	Interval = 15 * time.Second
	Length   = time.Second
)

// The bounds of what counting costs: a window ends when the kernel has counted so many runs. Each takes 70 to 100 ns more, so this is 40 ms in 15
// seconds: 0.3 % of one CPU, if all are on one. Their number is looked at after firstLook, and then whenever lookAgain times as much has passed.
const (
	mostRuns  = 400_000
	firstLook = 50 * time.Millisecond
	lookAgain = 5
)

// The bounds: how many programs are measured, those with the lowest ids, how many windows are kept, which are those of ten minutes, and how
// many programs of each, those that took most. The kept windows take 250 KB at most.
const (
	MaxPrograms = 4096
	kept        = 40
	keptOfEach  = 256
)

// Usage is of the flag --program-stats, which switches a Clock off.
const Usage = "measure what each program of the kernel costs, for up to 1 second of every 15: it has the kernel count runs (BPF_ENABLE_STATS)"

// sysctl is 1 where an administrator has the kernel count always.
const sysctl = "/proc/sys/kernel/bpf_stats_enabled"

// Options are what a Clock is made of.
type Options struct {
	// Node is the node's name: two nodes measure at different times.
	Node string
	// Log gets why nothing is measured, once; nil discards it.
	Log *slog.Logger
}

// Clock measures. It is safe for concurrent use; what it returns must not be changed.
type Clock struct {
	o Options
	// most is mostRuns, but for tests.
	most uint64
	// measuring is one window at a time, and has the samples of both ends, which the next window uses again.
	measuring     sync.Mutex
	before, after []sample

	mu      sync.Mutex
	latest  map[uint32]view.Cost
	totals  map[uint32]Total
	windows []Window
	// measured counts windows, and leftOut the programs that the last one left out.
	measured, leftOut int
}

// Window is a window that was measured.
type Window struct {
	// End is when it ended, and Seconds its length.
	End     time.Time
	Seconds float64
	// Programs are those that took most, up to 256 that ran, in that order.
	Programs []Sample
}

// Sample is what a program did in a window.
type Sample struct {
	ID                uint32
	Runs, Nanoseconds uint64
}

// Total is what a program did since the clock first saw it.
type Total struct {
	// Runs and Seconds are estimates: each window stands for its Interval.
	Runs, Seconds float64
	// Misses counts the runs that the kernel left out since its CPU was in a program already. The kernel counts them always, and none is estimated.
	Misses uint64
}

// New returns a Clock, which has measured nothing.
func New(o Options) *Clock {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Clock{o: o, most: mostRuns}
}

// Run measures one window in each interval until ctx ends, the first at once. It returns before that if this process may not enable the
// kernel's statistics.
func (c *Clock) Run(ctx context.Context) {
	last := ""
	for ctx.Err() == nil {
		err := c.Measure(ctx, nil)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, os.ErrPermission):
			c.o.Log.Warn("what programs cost is not measured: this needs CAP_SYS_ADMIN; grant it, or use --program-stats=false", "error", err)
			return
		case err != nil && err.Error() != last:
			c.o.Log.Warn("what programs cost cannot be measured; trying again in each interval", "error", err)
		}
		if last = ""; err != nil {
			last = err.Error()
		}
		rest(ctx, time.Until(next(c.o.Node, time.Now())))
	}
}

// rest waits, but not longer than ctx lasts.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// next is when the window of the next interval begins. The place in the interval depends on the node and on the interval: nodes of a fleet
// measure at different times, and work that comes at the same second of each minute is neither always in a window nor never.
func next(node string, now time.Time) time.Time {
	number := now.UnixNano()/int64(Interval) + 1
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d", node, number)
	// Such a hash differs little between numbers that follow each other, so it is mixed; an int64 has 63 bits.
	mixed := h.Sum64() * 0x9e3779b97f4a7c15 >> 1
	return time.Unix(0, number*int64(Interval)+int64(mixed)%int64(Interval-Length))
}

// Measure measures one window, which lasts as long as during; nil lasts until enough was counted, and a second at most. The error wraps
// os.ErrPermission if this process may not.
func (c *Clock) Measure(ctx context.Context, during func()) error {
	c.measuring.Lock()
	defer c.measuring.Unlock()
	stats, err := enable()
	if err != nil {
		return err
	}
	defer stats.Close()
	var leftOut int
	if c.before, _, err = read(ctx, c.before[:0]); err != nil {
		return err
	}
	if during == nil {
		c.wait(ctx)
	} else {
		during()
	}
	if c.after, leftOut, err = read(ctx, c.after[:0]); err != nil {
		return err
	}
	c.keep(time.Now(), leftOut, differences(c.before, c.after))
	return nil
}

// wait waits for the end of the window that c.before began. Where the kernel cannot be read, that is now: who reads it next has the error.
func (c *Clock) wait(ctx context.Context) {
	began := time.Now()
	for d := firstLook; d > 0; {
		rest(ctx, d)
		if time.Since(began) >= Length {
			return
		}
		var err error
		if c.after, _, err = read(ctx, c.after[:0]); err != nil {
			return
		}
		runs := uint64(0)
		for _, d := range differences(c.before, c.after) {
			runs += d.Runs
		}
		d = more(time.Since(began), runs, c.most)
	}
}

// more is how long a window that has counted so many runs of at most so many may last until the next look, or until its end; zero ends it.
func more(elapsed time.Duration, runs, most uint64) time.Duration {
	if runs >= most {
		return 0
	}
	left := min(Length-elapsed, (lookAgain-1)*elapsed)
	if runs > 0 {
		left = min(left, time.Duration(float64(elapsed)*float64(most-runs)/float64(runs)))
	}
	// A look for less costs more than it saves.
	if left < elapsed/10 {
		return 0
	}
	return left
}

// nothing closes nothing.
type nothing struct{}

// Close implements io.Closer.
func (nothing) Close() error { return nil }

// enable has the kernel count until what it returns is closed. The kernel counts who wants statistics: whose they are otherwise, keeps them.
func enable() (io.Closer, error) {
	if always, err := os.ReadFile(sysctl); err == nil && strings.TrimSpace(string(always)) == "1" {
		return nothing{}, nil
	}
	stats, err := plain.Of(ebpf.EnableStats(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return nil, fmt.Errorf("enable statistics of BPF programs: %w", err)
	}
	return stats, nil
}

// keep takes the results of a window.
func (c *Clock) keep(end time.Time, leftOut int, all []difference) {
	latest, totals := make(map[uint32]view.Cost, len(all)), make(map[uint32]Total, len(all))
	w := Window{End: end}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range all {
		latest[d.ID] = view.Cost{Measured: metav1.NewTime(end), WindowSeconds: d.length.Seconds(), Runs: d.Runs, Nanoseconds: d.Nanoseconds}
		totals[d.ID] = c.totals[d.ID].plus(d)
		w.Seconds = max(w.Seconds, d.length.Seconds())
		if d.Runs > 0 {
			w.Programs = append(w.Programs, d.Sample)
		}
	}
	slices.SortStableFunc(w.Programs, func(a, b Sample) int { return cmp.Compare(b.Nanoseconds, a.Nanoseconds) })
	// Without what is beyond, whose memory the ring would keep.
	w.Programs = slices.Clone(w.Programs[:min(len(w.Programs), keptOfEach)])
	if c.windows = append(c.windows, w); len(c.windows) > kept {
		c.windows = slices.Clone(c.windows[len(c.windows)-kept:])
	}
	c.latest, c.totals, c.leftOut = latest, totals, leftOut
	c.measured++
}

// plus adds a window, which stands for its interval.
func (t Total) plus(d difference) Total {
	t.Misses = d.misses
	if d.length > 0 {
		scale := float64(Interval) / float64(d.length)
		t.Runs += float64(d.Runs) * scale
		t.Seconds += float64(d.Nanoseconds) / 1e9 * scale
	}
	return t
}

// Latest is what each program cost in the last window, by the kernel's id; nil before the first.
func (c *Clock) Latest() map[uint32]view.Cost {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}

// Totals is what each program that is loaded did, by the kernel's id.
func (c *Clock) Totals() map[uint32]Total {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.totals
}

// Windows are the last ones, the newest last: those of ten minutes.
func (c *Clock) Windows() []Window {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.windows)
}

// Measured is how many windows were measured.
func (c *Clock) Measured() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.measured
}

// LeftOut is how many programs the last window left out, as there were more than MaxPrograms.
func (c *Clock) LeftOut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leftOut
}
