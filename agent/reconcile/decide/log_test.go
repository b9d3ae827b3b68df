package decide

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
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
