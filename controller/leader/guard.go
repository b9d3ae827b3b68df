package leader

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// guard is a lock that client-go's elector holds as Skep needs it. That elector
// notices another holder only once it has failed to renew the lease for long, ends the
// term only once it has tried to give the lease back, however long the API server hangs,
// and gives it back before the work of the term has ended.
type guard struct {
	resourcelock.Interface
	// lost is called when the lease names another holder, and when it was not renewed
	// for the time of deadline.
	lost     func()
	deadline time.Duration
	// busy is whether the work of a term may still run.
	busy atomic.Bool
	// held is whether the lease was this replica's.
	held atomic.Bool

	// mu guards expiry, which calls lost unless the lease is renewed before.
	mu     sync.Mutex
	expiry *time.Timer
}

// errBusy says why the lease is not given back.
var errBusy = errors.New("what the leader does has not ended yet")

// free lets the lease be given back.
func (g *guard) free() { g.busy.Store(false) }

// written notes what the lease says now. It lasts from when the request was made, and
// not from when the API server answered.
func (g *guard) written(record resourcelock.LeaderElectionRecord) {
	mine := record.HolderIdentity == g.Identity()
	g.held.Store(mine)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.expiry != nil {
		g.expiry.Stop()
	}
	if mine {
		g.expiry = time.AfterFunc(g.deadline-time.Since(record.RenewTime.Time), g.lost)
	}
}

// Get implements resourcelock.Interface.
func (g *guard) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := g.Interface.Get(ctx)
	if err == nil && g.held.Load() && record.HolderIdentity != g.Identity() {
		g.lost()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (g *guard) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := g.Interface.Create(ctx, record)
	if err == nil {
		g.written(record)
	}
	return err
}

// Update implements resourcelock.Interface. A record without a holder gives the
// lease back.
func (g *guard) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && g.busy.Load() {
		return errBusy
	}
	err := g.Interface.Update(ctx, record)
	if err == nil {
		g.written(record)
	}
	return err
}
