package exit

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// OnSignal returns a context that ends with the first SIGINT or SIGTERM. The second one
// ends the process. signalled returns the first signal, or 0 if there was none.
func OnSignal(parent context.Context) (ctx context.Context, signalled func() syscall.Signal) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var first atomic.Int64
	go func() {
		by, _ := (<-signals).(syscall.Signal)
		first.Store(int64(by))
		signal.Stop(signals)
		cancel()
	}()
	return ctx, func() syscall.Signal { return syscall.Signal(first.Load()) }
}
