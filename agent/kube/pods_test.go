package kube_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/harness/need"
)

// runsIn has the application fail with those words and be attached twice in each of so many pods, and at one place outside of pods. In
// another pod it waits.
func (s *stub) runsIn(pods int, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	links := []agent.LinkStatus{{State: agent.Attached}, {State: agent.Waiting, On: plan.Target{In: "pod team-a/none"}}}
	for i := range pods {
		in := fmt.Sprint("pod team-a/web-", i)
		links = append(links, agent.LinkStatus{State: agent.Attached, On: plan.Target{In: in}},
			agent.LinkStatus{State: agent.Attached, On: plan.Target{In: in + " container c"}})
	}
	s.status = slices.Clone(s.status)
	s.status[0].Error = words
	s.status[0].Programs = []agent.ProgramStatus{{Name: "p", Links: links}}
}

// TestPodsAreCountedAndAreNoWrites of their own, but for one in five intervals.
func TestPodsAreCountedAndAreNoWrites(t *testing.T) {
	need.Kernel(t)
	w, s := newWorld(t, plane), newStub()
	s.says("u", "words")
	s.runsIn(2, "words")
	_, stop := w.start(s.on, func(o *kube.Options) { o.InventoryInterval = time.Hour })
	counted := func(pods int32) func() bool {
		return func() bool { n := w.report(); return n != nil && n.Status.Counts.Pods == pods }
	}
	until(t, "two pods", counted(2))
	before := w.quiet()
	s.runsIn(3, "words")
	if n := w.quiet() - before; n != 0 || !counted(2)() {
		t.Errorf("a pod that starts is %d writes", n)
	}
	s.runsIn(4, "other words")
	until(t, "four pods, with another change", counted(4))
	if n := w.quiet() - before; n != 1 {
		t.Errorf("another change is %d writes", n)
	}
	stop()
	w.start(s.on, func(o *kube.Options) { o.InventoryInterval = 50 * time.Millisecond })
	if n := w.quiet() - before; n != 1 {
		t.Errorf("a start is %d writes", n-1)
	}
	s.runsIn(5, "other words")
	until(t, "five pods, in the next interval", counted(5))
}
