package containers

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/skep-dev/skep/clock"
)

// Options are what a Source is told once.
type Options struct {
	// Endpoint is the runtime's socket: an absolute path, with unix:// before it or not.
	// NewCRI requires it.
	Endpoint string
	// CgroupRoot is the mount of cgroup2, which shows all cgroups of the node. Required.
	CgroupRoot string
	// NRI is the runtime's socket for NRI plug-ins, an absolute path, by which NewCRI hears of
	// containers before they start; default none.
	NRI string
	// Wake is called from any goroutine when the containers or pods changed, with the pods that
	// did, and at the first answer of the runtime, good or bad, without any: all pods may have
	// changed then. A Snapshot has the change already. Wake must not wait, nor call the Source.
	// Default nop.
	Wake func(changed ...Pod)
	// IdleAfter is how long after the last Snapshot the Source stops its work; default five
	// minutes. The next Snapshot begins anew, and has ErrNotRead.
	IdleAfter time.Duration
	// Interval is how often a runtime without events is asked for its list, and cgroups are
	// walked; default one second. Relist is how often one with events is; default ten seconds.
	Interval, Relist time.Duration
	// Timeout bounds one call to the runtime; default ten seconds.
	Timeout time.Duration
	// Log gets what is not the runtime's daily life; default none.
	Log *slog.Logger
	// Clock is the time; default time.Now.
	Clock func() time.Time
}

func (o *Options) fill() {
	if o.Wake == nil {
		o.Wake = func(...Pod) {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Clock = clock.OrSystem(o.Clock)
	o.IdleAfter = cmp.Or(o.IdleAfter, 5*time.Minute)
	o.Interval, o.Relist = cmp.Or(o.Interval, time.Second), cmp.Or(o.Relist, 10*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
}

// source implements Source: it runs read while somebody asks for Snapshots.
type source struct {
	opts Options
	kept *kept
	// read fills the state until the context ends.
	read func(context.Context, *state)
	mu   sync.Mutex
	// asked is when somebody asked last.
	asked  time.Time
	run    *run
	closed bool
	// runs are the goroutines that read, of which those that were stopped end soon.
	runs sync.WaitGroup
}

// run is one time of reading.
type run struct {
	state *state
	stop  context.CancelFunc
}

// Snapshot implements Source.
func (s *source) Snapshot() (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Snapshot{partial: true}, ErrClosed
	}
	s.asked = s.opts.Clock()
	if s.run == nil {
		s.begin()
	}
	return s.run.state.snapshot()
}

// begin starts to read. The caller holds mu.
func (s *source) begin() {
	ctx, stop := context.WithCancel(context.Background())
	r := &run{state: newState(s.opts.Wake), stop: stop}
	s.run = r
	s.runs.Go(func() { s.read(ctx, r.state) })
	s.runs.Go(func() { s.expire(ctx, r) })
}

// expire stops the run after a long time without a request.
func (s *source) expire(ctx context.Context, r *run) {
	timer := time.NewTimer(s.opts.IdleAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.mu.Lock()
		left := s.opts.IdleAfter - s.opts.Clock().Sub(s.asked)
		if left <= 0 && s.run == r {
			s.end()
		}
		s.mu.Unlock()
		timer.Reset(max(left, time.Millisecond))
	}
}

// end stops to read. The caller holds mu.
func (s *source) end() {
	if s.run != nil {
		s.run.state.retire()
		s.run.stop()
		s.run = nil
	}
}

// Close implements Source.
func (s *source) Close() error {
	s.mu.Lock()
	s.closed = true
	s.end()
	s.mu.Unlock()
	s.runs.Wait()
	return nil
}
