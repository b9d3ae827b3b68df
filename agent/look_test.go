package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestAReaderLeavesALoopThatIsBusy(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	busy, free := make(chan struct{}), make(chan struct{})
	a.OnLook(func() {
		select {
		case busy <- struct{}{}:
			<-free
		default:
		}
	})
	a.NamespacesChanged()
	<-busy
	a.NamespacesChanged()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := a.Look(ctx)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("the reader has %v", err)
	}
	close(free)
	if _, err := a.Look(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestALookKeepsTheLoopWaitingForABoundedTime(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	a, _ := w.Start()
	w.Must(a, world.Member(w, "a", "xdp_count", "count_packets", 500), world.Member(w, "b", "xdp_pass", "xdp_pass", 600),
		world.Version(w, "7", world.On("tcx/ingress", "cn0")[0]))
	s := a.LookUntil(time.Now().Add(time.Hour))
	if len(s.Chains) != 2 || s.Chains[0].Error != "" || s.Chains[0].Members[1].Runs == nil || len(s.LeftOut) != 0 {
		t.Errorf("with time: %+v", s)
	}
	s = a.LookUntil(time.Now())
	if len(s.Chains) != 1 || len(s.Chains[0].Members) != 2 || !strings.Contains(s.Chains[0].Error, "no time") ||
		len(s.LeftOut) != 1 || !strings.HasPrefix(s.LeftOut[0], "2 places") {
		t.Errorf("without time: %+v", s)
	}
}

func TestAReaderTakesNoIntentFromTheLoop(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a := w.Idle(w.Options())
	arrived := a.Arrivals()
	if err := a.Accept(w.Seal(world.XDP(w, "xdp_pass", "xdp_pass", "lo"))); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Chains(); err != nil || !arrived() {
		t.Errorf("the loop does not know of an intent that came before a reader: %v", err)
	}
}
