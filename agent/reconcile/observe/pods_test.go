package observe

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/agent/reconcile/changes"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// answer is a source of containers that has one answer.
type answer struct{ err error }

// Snapshot implements containers.Source.
func (a answer) Snapshot() (*containers.Snapshot, error) { return containers.NewSnapshot(nil), a.err }

// Close implements containers.Source.
func (a answer) Close() error { return nil }

func TestPodsOfARuntimeThatIsAwayAreThoseThatItNamed(t *testing.T) {
	away := &containers.AwayError{Endpoint: "/run/runtime.sock", Err: errors.New("connection refused")}
	for sentence, c := range map[string]struct {
		err   error
		known bool
	}{
		"it answers":                       {nil, true},
		"it went away after its answer":    {away, true},
		"it has not answered yet":          {containers.ErrNotRead, false},
		"the agent no longer asks for any": {containers.ErrClosed, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			n := New(Options{Containers: answer{c.err}, Log: slog.New(slog.DiscardHandler)})
			if got := n.podsNow([]version.Known{{Newest: choosingPods(t)}}, &live.Open{}); (got.Err == nil) != c.known || got.Snapshot == nil {
				t.Errorf("pods %+v", got)
			}
		})
	}
}

// TestAnIntentIsNewBesideThatOfAPredecessor has an application deleted and made again: there are two intents of its name.
func TestAnIntentIsNewBesideThatOfAPredecessor(t *testing.T) {
	n := New(Options{Containers: answer{}, Log: slog.New(slog.DiscardHandler), Changes: changes.New()})
	app := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	of := func(uid string, serial int64) version.Known { return version.Known{Newest: intentOf(t, uid, serial)} }
	former := of("uid-b", 5)
	for sentence, c := range map[string]struct {
		before, now []version.Known
		is          bool
	}{
		"the first":                      {nil, []version.Known{former}, true},
		"no other one":                   {[]version.Known{former}, []version.Known{former}, false},
		"that of a successor":            {[]version.Known{former}, []version.Known{of("uid-a", 3), former}, true},
		"another one of a successor":     {[]version.Known{of("uid-a", 3), former}, []version.Known{of("uid-a", 4), former}, true},
		"no more that of a predecessor":  {[]version.Known{of("uid-a", 3), former}, []version.Known{of("uid-a", 3)}, false},
		"a tombstone of the predecessor": {[]version.Known{of("uid-a", 3), former}, []version.Known{of("uid-a", 3), of("uid-b", 6)}, true},
	} {
		n.Begin(c.before, &live.Open{}, true).Keep()
		if got := n.Begin(c.now, &live.Open{}, false).Pods.IsNew(app); got != c.is {
			t.Errorf("%s: an intent of the application is new: %v, want %v", sentence, got, c.is)
		}
	}
}

// choosingPods is an intent that chooses pods.
func choosingPods(t *testing.T) intent.Opened { return intentOf(t, "app", 1) }

// intentOf is one of the application app, which chooses pods.
func intentOf(t *testing.T, uid string, serial int64) intent.Opened {
	t.Helper()
	by := seals.New(t)
	envelope := by.Seal(t, intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, UID: uid, Serial: serial, ImageDigest: "sha256:image",
		ObjectDigest: "sha256:object",
		Programs:     []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{Hook: "sk_lookup", Pods: &v1alpha1.Pods{}}}}},
	})
	opened, err := by.Trust.Open(envelope)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}
