package nodemode

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/gitrepo"
)

// BenchmarkCommitToAttached measures from a commit to the new version attached
// in the kernel: seen, rendered in its child process, evaluated, sealed, loaded,
// attached, the old one gone. Two versions take turns, so that from the third
// commit on nothing is fetched.
func BenchmarkCommitToAttached(b *testing.B) {
	s := newStage(b)
	r := gitrepo.New(b)
	refs := []string{s.push(first, "app:v1", "team-a"), s.push(second, "app:v2", "team-a")}
	s.defs = r.Dir
	h := s.open(func(o *Options) { o.Source, o.Interval, o.Now = "file://"+r.Dir, time.Hour, nil })
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, nil) }()
	for n := 0; b.Loop(); n++ {
		ref := refs[n%2]
		r.Commit(map[string]string{"app.yaml": string(s.definition("app", ref))})
		for !attached(h, ref) {
			<-time.After(time.Millisecond)
		}
	}
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// attached reports whether the application runs the image.
func attached(h *Host, ref string) bool {
	for _, a := range h.Status().Applications {
		return a.Agent != nil && a.Agent.Image == ref && a.Agent.Revision == a.Agent.Wanted &&
			a.Condition(v1alpha1.ConditionReady).Status == metav1.ConditionTrue
	}
	return false
}
