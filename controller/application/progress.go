package application

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// A phase of an application lasts as long as its status says the same but for how
// many nodes have come how far. What changes the phase is written at once. Within
// one, counts are written apart by so long, and by as long as the phase is old,
// up to so long: a thousand nodes that come along one by one make few writes, and
// people who wait see it move.
const (
	progressAfter = 5 * time.Second
	progressAtEnd = time.Minute
)

// progress remembers when statuses were last written.
type progress struct {
	mu   sync.Mutex
	last map[v1alpha1.Identity]written
}

// written is when a phase was first written, and when last.
type written struct{ first, last time.Time }

// wait is how long a status is to be held back; zero means that it is to be
// written now.
func (p *progress) wait(before, now application, at time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, known := p.last[now.Identity()]
	if !known || !equality.Semantic.DeepEqual(withoutCounts(before), withoutCounts(now)) {
		return 0
	}
	apart := min(max(progressAfter, t.last.Sub(t.first)), progressAtEnd)
	return max(0, apart-at.Sub(t.last))
}

// written notes that a status was written.
func (p *progress) written(before, now application, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[v1alpha1.Identity]written{}
	}
	t, known := p.last[now.Identity()]
	if !known || !equality.Semantic.DeepEqual(withoutCounts(before), withoutCounts(now)) {
		t.first = at
	}
	t.last = at
	p.last[now.Identity()] = t
}

func (p *progress) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.last)
}

func (p *progress) forget(id v1alpha1.Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, id)
}

// withoutCounts is what a status says but for what only counts nodes.
func withoutCounts(a application) *v1alpha1.BpfApplicationStatus {
	s := a.Report().DeepCopy()
	s.Nodes = nil
	if s.Rollout != nil {
		s.Rollout.Nodes, s.Rollout.Message = 0, ""
	}
	counting := []string{v1alpha1.ConditionDeployed, v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}
	for i := range s.Conditions {
		if slices.Contains(counting, s.Conditions[i].Type) {
			// fluxcd/pkg takes new words for a transition.
			s.Conditions[i].Message, s.Conditions[i].LastTransitionTime = "", metav1.Time{}
		}
	}
	return s
}
