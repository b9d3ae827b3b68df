// Package await has tests wait for a condition.
//
// It owns the loop alone: what is waited for, and for how long, its callers say.
package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Between two calls there is a sixteenth of the time that was waited, so that a long wait takes no processor from
// what it waits for; at least shortest.
const shortest, part = time.Millisecond, 16

// Until calls check until it returns nil, with pauses that grow up to the longest. Where the context ends
// first, the error wraps what check returned last.
func Until(ctx context.Context, longest time.Duration, check func() error) error {
	for start := time.Now(); ; {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting: %w", err)
		case <-time.After(min(max(time.Since(start)/part, shortest), longest)):
		}
	}
}

// errFalse is what a condition says that is not true.
var errFalse = errors.New("it did not come")

// True waits for a condition that costs little, looking often, and fails the test where it does not come within the time.
func True(t testing.TB, what string, patience time.Duration, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := Until(ctx, 50*time.Millisecond, func() error {
		if condition() {
			return nil
		}
		return errFalse
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
