package chainfit

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/finish"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// TestAWaiterIsToldTheErrorOfAChainWhileItHolds: what the kernel said of the chain of others is no error of one that waits for
// its turn, once that chain is set.
func TestAWaiterIsToldTheErrorOfAChainWhileItHolds(t *testing.T) {
	app := &accepted.Application{Application: decide.Application{Known: version.Known{Newest: seals.New(t).Open(t, intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "a", Serial: 1, ObjectDigest: "sha256:object",
		Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}},
	})}}}
	log, look := slog.New(slog.DiscardHandler), (&live.Set{}).Look()
	intents := &accepted.Round{Applications: []*accepted.Application{app}}
	device := plan.Device{Index: 2}
	for i, c := range []struct {
		err  error
		says string
	}{
		{unix.ENOMEM, "waits for the programs of others there: cannot allocate memory"},
		{build.ErrLoading, "cannot allocate memory"},
		{build.ErrLoading, "cannot allocate memory"},
		{nil, ""},
		{unix.EBUSY, "device or resource busy"},
		{nil, ""},
	} {
		decisions := decide.New(decide.Options{Log: log, Look: look, Applications: intents.States()})
		decisions.Outcomes["a"] = &report.Outcome{}
		w := &Waiting{decisions: decisions, behind: map[plan.Device]bool{}, postponed: map[plan.Device][]string{}}
		w.postpone("a", device, "it waits for its turn")
		if c.err != nil {
			w.Fail(device, c.err)
		}
		// An answer is waited for, but for that of a kernel that said no.
		if settled := c.err != nil && !decide.IsPending(c.err); decisions.Outcomes["a"].IsSettled() != settled {
			t.Errorf("reconcile %d: settled is %v", i, !settled)
		}
		finish.New(finish.Options{Log: log, BackOff: retry.BackOff{First: time.Minute, Most: time.Hour}, Intents: intents, Decisions: decisions,
			Look: look}).Applications()
		if got := app.Status.Error; !strings.Contains(got, c.says) || c.says == "" && got != "" {
			t.Errorf("reconcile %d says %q, want %q", i, got, c.says)
		}
	}
}
