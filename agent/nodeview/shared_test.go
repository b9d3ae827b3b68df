package nodeview_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// loop stands for an agent whose loop is busy until it is let go on.
type loop struct {
	looks, lists int
	free         chan struct{}
	err          error
}

func (l *loop) viewer() *nodeview.Viewer {
	return nodeview.New(nodeview.Options{Node: "n1", Status: func() []agent.ApplicationStatus { return nil },
		Look: func(ctx context.Context) (agent.Sight, error) {
			l.looks++
			select {
			case <-l.free:
				return agent.Sight{At: time.Now()}, l.err
			case <-ctx.Done():
				return agent.Sight{}, ctx.Err()
			}
		},
		Inventory: func(context.Context) (inventory.Inventory, error) { l.lists++; return inventory.Inventory{}, nil }})
}

func TestReadersShareOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loop{free: make(chan struct{})}
		v := l.viewer()
		const readers = 100
		done := make(chan error, readers)
		all := func() {
			for range readers {
				go func() {
					_, err := v.View(t.Context(), view.Scope{})
					done <- err
				}()
			}
			synctest.Wait()
		}
		all()
		if l.looks != 1 || l.lists != 1 || len(done) != 0 {
			t.Fatalf("%d looks, %d lists and %d answers while the loop is busy", l.looks, l.lists, len(done))
		}
		close(l.free)
		synctest.Wait()
		if len(done) != readers {
			t.Fatalf("%d of %d readers have an answer", len(done), readers)
		}
		all()
		if l.looks != 1 {
			t.Fatalf("%d looks within a second", l.looks)
		}
		for range 10 {
			<-time.After(time.Second)
			all()
		}
		if l.looks != 11 || l.lists != 6 {
			t.Errorf("%d looks and %d lists in ten seconds", l.looks, l.lists)
		}
		for len(done) > 0 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAReaderWaitsNoLongerForABusyLoopThanItLikes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loop{free: make(chan struct{})}
		v := l.viewer()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := v.View(ctx, view.Scope{})
			done <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a reader that gave up has %v", err)
		}
		// One that stays gets what is known without the loop, and the next look is the same.
		began := time.Now()
		n, err := v.View(t.Context(), view.Scope{})
		if err != nil || time.Since(began) > 2*time.Second || len(n.LeftOut) != 1 || !strings.Contains(n.LeftOut[0], "busy") || l.looks != 1 {
			t.Errorf("after %s and %d looks: %v, %v", time.Since(began), l.looks, n.LeftOut, err)
		}
		close(l.free)
		<-time.After(2 * time.Second)
		if n, err = v.View(t.Context(), view.Scope{}); err != nil || len(n.LeftOut) != 0 {
			t.Errorf("a loop that is free again: %v, %v", n.LeftOut, err)
		}
		l.free = make(chan struct{})
		<-time.After(2 * time.Second)
		n, err = v.View(t.Context(), view.Scope{})
		if err != nil || len(n.LeftOut) != 1 || !strings.Contains(n.LeftOut[0], "as of 2000-01-01T00:00:0") {
			t.Errorf("a loop that is busy again: %v, %v", n.LeftOut, err)
		}
		close(l.free)
	})
}

// TestReadersOfAScopeShareItsPart: it is made and measured once, however many ask for it.
func TestReadersOfAScopeShareItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := agent.ApplicationStatus{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: "web"}}
		v := nodeview.New(nodeview.Options{Node: "n1", Status: func() []agent.ApplicationStatus { return []agent.ApplicationStatus{own} }})
		see := func(scope view.Scope) *view.Application {
			t.Helper()
			n, err := v.View(t.Context(), scope)
			if err != nil || len(n.Applications) != 1 {
				t.Fatalf("%+v, %v", n, err)
			}
			return &n.Applications[0]
		}
		team := view.Scope{Kind: v1alpha1.KindBpfApplication, Namespace: "team"}
		first := see(team)
		if see(team) != first || see(view.Scope{}) == first {
			t.Error("readers share no part, or one of another scope")
		}
		for i := range 100 {
			if _, err := v.View(t.Context(), view.Scope{Kind: v1alpha1.KindBpfApplication, Namespace: fmt.Sprint("other-", i)}); err != nil {
				t.Fatal(err)
			}
		}
		if see(team) != first {
			t.Error("readers of other scopes took the part away")
		}
		<-time.After(time.Second)
		if see(team) == first {
			t.Error("a part is as old as the first reader")
		}
	})
}
