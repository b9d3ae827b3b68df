package finish

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// TestAVersionThatFailedHasFailedWhileItIsTriedAgain: its condition does not alternate with each attempt. What is tried for the first time
// is on its way.
func TestAVersionThatFailedHasFailedWhileItIsTriedAgain(t *testing.T) {
	app := &accepted.Application{Application: decide.Application{Known: version.Known{Newest: seals.New(t).Open(t, intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "a", Serial: 1, ObjectDigest: "sha256:object",
		Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}},
	})}}}
	log, look := slog.New(slog.DiscardHandler), (&live.Set{}).Look()
	intents := &accepted.Round{Applications: []*accepted.Application{app}}
	for i, step := range []struct {
		decided func(d *decide.Decisions)
		reason  string
		error   string
	}{
		{func(d *decide.Decisions) { d.Outcomes["a"].State = report.Staying{Why: report.Loading{}} }, "Loading", ""},
		{func(d *decide.Decisions) { d.Reject("a", errors.New("the verifier says no")) }, "Failed", "the verifier says no"},
		{func(d *decide.Decisions) { d.Outcomes["a"].State = report.Staying{Why: report.Loading{}} }, "Failed", "the verifier says no"},
		{func(d *decide.Decisions) { d.Outcomes["a"].State = report.Staying{Why: report.Fetching{}} }, "Failed", "the verifier says no"},
		{func(d *decide.Decisions) { d.Reject("a", errors.New("it says no again")) }, "Failed", "it says no again"},
		{func(*decide.Decisions) { app.Rejected = nil }, "Loading", "it says no again"},
	} {
		decisions := decide.New(decide.Options{Log: log, Look: look, Applications: intents.States()})
		decisions.Outcomes["a"] = &report.Outcome{}
		step.decided(decisions)
		if decisions.Outcomes["a"].State == nil {
			// Another version of it is the newest.
			decisions.Outcomes["a"].State = report.Staying{Why: report.Loading{}}
		}
		New(Options{Log: log, BackOff: retry.BackOff{First: time.Minute, Most: time.Hour}, Intents: intents, Decisions: decisions, Look: look}).Applications()
		if c := app.Status.Conditions[0]; c.Reason != step.reason || app.Status.Error != step.error {
			t.Errorf("step %d: %s: %s, and the error is %q; want %s and %q", i, c.Reason, c.Message, app.Status.Error, step.reason, step.error)
		}
	}
}
