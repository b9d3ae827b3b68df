// Package await has tests wait for a condition.
package await

import (
	"context"
	"fmt"
	"time"
)

// Until calls check with a pause between two calls until it returns nil. Where the context ends
// first, the error wraps what check returned last.
func Until(ctx context.Context, pause time.Duration, check func() error) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting: %w", err)
		case <-tick.C:
		}
	}
}
