package finish

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

func TestWhatTheKernelLacksIsToldApartAlsoWhileTheNextAttemptIsWaitedFor(t *testing.T) {
	h, _ := hook.Lookup("tcx/ingress")
	for sentence, tc := range map[string]struct {
		err         error
		unsupported bool
	}{
		"the kernel lacks the hook": {fmt.Errorf("load: %w", &attach.LackingError{Hook: h}), true},
		"the verifier says no":      {fmt.Errorf("load: R1 type=ctx expected=fp"), false},
	} {
		t.Run(sentence, func(t *testing.T) {
			app := &accepted.Application{Application: decide.Application{Known: version.Known{Newest: seals.New(t).Open(t, intent.Payload{
				Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}, UID: "a", Serial: 1, ObjectDigest: "sha256:object",
				Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "tcx/ingress"}}}},
			})}}}
			log, look := slog.New(slog.DiscardHandler), (&live.Set{}).Look()
			intents := &accepted.Round{Applications: []*accepted.Application{app}}
			decisions := decide.New(decide.Options{Log: log, Look: look, Applications: intents.States()})
			r := New(Options{Log: log, BackOff: retry.BackOff{First: time.Minute, Most: time.Hour}, Intents: intents, Decisions: decisions, Look: look})
			decisions.Outcomes["a"] = &report.Outcome{}
			decisions.Reject("a", tc.err)
			r.Applications()
			first := app.Status
			decisions.Outcomes["a"] = &report.Outcome{State: report.Staying{Why: report.Refused{}}}
			r.Applications()
			for when, s := range map[string]report.ApplicationStatus{"at once": first, "backing off": app.Status} {
				if s.Unsupported != tc.unsupported || s.Error != tc.err.Error() {
					t.Errorf("%s: unsupported: %v, %q", when, s.Unsupported, s.Error)
				}
			}
		})
	}
}
