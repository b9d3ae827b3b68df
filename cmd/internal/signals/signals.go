// Package signals ends the context of a command with the signal that ends the command. It
// decides no exit code.
package signals

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// Until returns a context that ends with the first SIGINT or SIGTERM. The second one
// ends the process. signalled returns the first signal, or 0 if there was none.
func Until(parent context.Context) (ctx context.Context, signalled func() syscall.Signal) {
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
