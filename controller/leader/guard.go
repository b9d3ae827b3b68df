package leader

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// guard is a lock that client-go's elector holds as Skep needs it. That elector
// notices another holder only once it has failed to renew the lease for long, and
// it gives the lease back before the work of the term has ended.
type guard struct {
	resourcelock.Interface
	// lost is called when the lease names another holder.
	lost func()
	// busy is whether the work of a term may still run.
	busy atomic.Bool
	// held is whether the lease was this replica's.
	held atomic.Bool
}

// errBusy says why the lease is not given back.
var errBusy = errors.New("what the leader does has not ended yet")

// free lets the lease be given back.
func (g *guard) free() { g.busy.Store(false) }

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
		g.held.Store(true)
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
		g.held.Store(record.HolderIdentity == g.Identity())
	}
	return err
}
