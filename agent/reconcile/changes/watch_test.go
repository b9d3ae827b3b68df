package changes

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestASubscriptionThatEndsIsMadeAgain: netlink ends one whose events are not read
// in time.
func TestASubscriptionThatEndsIsMadeAgain(t *testing.T) {
	var log bytes.Buffer
	c := New()
	w := &Watch{changes: c, log: slog.New(slog.NewTextHandler(&log, nil)), done: make(chan struct{})}
	var mu sync.Mutex
	var made []chan<- int
	tries := 0
	err := follow(w, "interfaces", func(events chan<- int, _ <-chan struct{}) error {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 2 {
			return errors.New("no buffer space available")
		}
		made = append(made, events)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	woken := func(what string, by <-chan struct{}) {
		t.Helper()
		select {
		case <-by:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the loop is not woken", what)
		}
	}
	made[0] <- 1
	woken("an event", c.Hints())
	close(made[0])
	woken("a new subscription", c.Signals())
	mu.Lock()
	next := made[1]
	mu.Unlock()
	next <- 2
	woken("an event of the new subscription", c.Hints())
	close(w.done)
	w.wait.Wait()
	for _, want := range []string{"no buffer space available", "made again", "interfaces"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}
