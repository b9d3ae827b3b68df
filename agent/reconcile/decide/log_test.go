package decide

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/intent"
)

// TestALogOfAChainSaysSo: it has the source of the programs of others.
func TestALogOfAChainSaysSo(t *testing.T) {
	said := &ebpf.VerifierError{Cause: errors.New("permission denied"), Log: []string{"; return secret();"}}
	for name, c := range map[string]struct {
		err   error
		joint bool
	}{
		"a chain":         {&chain.Rejection{Member: "a", Limit: chain.LimitVerifier, Err: said}, true},
		"its own program": {said, false},
	} {
		app := &Application{}
		d := &Decisions{Options: Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, Outcomes: map[string]*report.Outcome{"": {}}}
		d.fail(app, intent.Opened{}, c.err)
		if got := app.VerifierLog; strings.HasPrefix(got, report.JointLog) != c.joint || !strings.HasSuffix(got, "; return secret();") {
			t.Errorf("%s: the log is %q", name, got)
		}
	}
}

// TestTheLogHasWhatATeamIsNotTold: an administrator is sent there.
func TestTheLogHasWhatATeamIsNotTold(t *testing.T) {
	told := &withheldError{"something of others", errors.New("fetch object of beta/secret")}
	place := plan.Place{Hook: plan.XDP, Device: plan.Device{Index: 2}, Interface: "eth0"}
	for sentence, do := range map[string]func(d *Decisions, app *Application){
		"a version that is refused": func(d *Decisions, app *Application) { d.fail(app, intent.Opened{}, told) },
		"a place without it":        func(d *Decisions, _ *Application) { d.LeaveOut("", map[plan.Place]error{place: told}) },
	} {
		var log bytes.Buffer
		app := &Application{}
		d := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Look: (&live.Set{}).Look(), Applications: []*Application{app}})
		d.Outcomes[""] = &report.Outcome{}
		d.Want.Applications, d.indexes[""] = []plan.Application{{Attachments: []plan.Attachment{{Hook: plan.XDP,
			Target: plan.Target{Ifindex: 2, Interface: "eth0"}}}}}, 0
		do(d, app)
		if !strings.Contains(log.String(), "fetch object of beta/secret") {
			t.Errorf("%s: the log has %q", sentence, &log)
		}
	}
}
