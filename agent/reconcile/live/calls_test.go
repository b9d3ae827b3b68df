package live

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/state/pins"
)

// TestOwnersWhoseCallsHangLeaveRoomToOthers has the kernel not answer two hundred owners, who ask for all that they may.
func TestOwnersWhoseCallsHangLeaveRoomToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan bool, 1000)
		s := New(&pins.Store{Filters: new(clsact.Table)}, func() { woken <- true }, "", slog.New(slog.DiscardHandler))
		answer := make(chan bool)
		hangs := func(context.Context) bool {
			<-answer
			return true
		}
		for i := range 200 {
			owner := fmt.Sprint("hung-", i)
			for range 2 * maxOfOwner {
				if place := s.Makings.Reserve(owner, "probe"); place != nil {
					place.Go(hangs)
				}
			}
			s.Remnants.closing.Add(queue.Job{Owners: []string{owner}, Owed: true, Run: hangs})
		}
		for _, owner := range []string{"other", "/application"} {
			made := s.Makings.Reserve(owner, "probe")
			if made == nil || s.Makings.Reserve(owner, "probe") != nil {
				t.Fatalf("%s: want room for one link that is made, and no second one", owner)
			}
			made.Go(func(context.Context) bool { return true })
			if !made.Await(time.Second) {
				t.Errorf("the link of %s is not made while others hang", owner)
			}
			closed := s.Remnants.closing.Add(queue.Job{Owners: []string{owner}, Owed: true, Run: func(context.Context) bool { return true }})
			if !closed.Await(201 * slowCall) {
				t.Errorf("the link of %s is not closed while others hang", owner)
			}
		}
		close(answer)
		s.Remnants.AwaitClosings()
		s.Makings.queue.Wait()
	})
}
