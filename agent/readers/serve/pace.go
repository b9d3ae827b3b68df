package serve

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// pace runs one piece of work at a time, and lets so much time pass after each that all together
// take a share of a core.
type pace struct {
	// turn has a token, and the time from which the next piece may run.
	turn  chan time.Time
	share float64
}

func newPace(share float64) *pace {
	p := &pace{turn: make(chan time.Time, 1), share: share}
	p.turn <- time.Time{}
	return p
}

// begin waits for its turn. The function that it returns ends it, with the time that a processor
// worked.
func (p *pace) begin(ctx context.Context) (end func(worked time.Duration), err error) {
	var from time.Time
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case from = <-p.turn:
	}
	if wait := time.Until(from); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			p.turn <- from
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
	return func(worked time.Duration) {
		p.turn <- time.Now().Add(time.Duration(float64(worked) * (1/p.share - 1)))
	}, nil
}

// inTurn does work when all paces have their turn, one after the other, and returns how long a processor worked, as the work does.
func inTurn(ctx context.Context, paces []*pace, work func() time.Duration) (worked time.Duration, err error) {
	if len(paces) == 0 {
		return work(), nil
	}
	end, err := paces[0].begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { end(worked) }()
	return inTurn(ctx, paces[1:], work)
}

// measured runs a function and returns the time that a processor worked for it: what it waited for
// others on a busy machine is not the reader's.
func measured(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	do()
	return threadTime() - before
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
