package starts

import (
	"log/slog"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestANamespaceThatTheRuntimeDoesNotShowIsNotWaitedFor has the runtime not answer for containers of
// one namespace. Those of others wait as before.
func TestANamespaceThatTheRuntimeDoesNotShowIsNotWaitedFor(t *testing.T) {
	now := time.Unix(1, 0)
	s := New(Options{Log: slog.New(slog.DiscardHandler), Clock: func() time.Time { return now }, Wake: func() {}})
	s.reconciled([]application{{UID: "u", Identity: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "guard"},
		Attachments: []v1alpha1.Attachment{{Hook: "tracepoint", Pods: &v1alpha1.Pods{}}}}}, nil, nil)
	of := func(namespace string) containers.Container {
		return containers.Container{ID: namespace, Name: "main", Pod: containers.Pod{Namespace: namespace, Name: "web", SandboxID: namespace}}
	}
	if !s.Chooses(of("red")) || !s.Chooses(of("blue")) {
		t.Fatal("a container does not wait at first")
	}
	for _, long := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		s.Unseen(of("red"))
		now = now.Add(long - 1)
		if s.Chooses(of("red")) || !s.Chooses(of("blue")) {
			t.Errorf("after %s one of its namespace waits: %v, one of another: %v", long-1, s.Chooses(of("red")), s.Chooses(of("blue")))
		}
		now = now.Add(1)
		if !s.Chooses(of("red")) {
			t.Errorf("none waits after %s", long)
		}
	}
}
