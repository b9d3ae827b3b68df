package agent_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestTheLogNamesApplications where the kernel, the disk, or whoever has their bytecode fails
// them.
func TestTheLogNamesApplications(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	lock, unlock := ownBPFFS(w)
	world.Veth(t, "cn0", "cn1")
	var log strings.Builder
	o := w.Options()
	o.Log, o.BackOff = slog.New(slog.NewTextHandler(&log, nil)), agent.BackOff{First: time.Hour, Most: time.Hour}
	a, stop := w.Run(o)
	ofTeam := func(p intent.Payload) intent.Payload {
		p.Application.Kind, p.Application.Namespace = "BpfApplication", "team"
		return p
	}
	first, second := ofTeam(world.Member(w, "first", "xdp_count", "count_packets", 1)), ofTeam(world.Member(w, "second", "xdp_pass", "xdp_pass", 2))
	// The second time that it is linked anew, its bytecode is needed.
	if err := errors.Join(w.Accept(a, first, second), w.Accept(a, world.Member(w, "third", "xdp_gpl", "xdp_gpl", 3))); err != nil {
		t.Fatal(err)
	}
	world.Lose(w, second)
	if err := w.Accept(a, w.Tombstone(first)); err == nil {
		t.Error("the chain is changed without the bytecode")
	}
	stop()
	intents := filepath.Join(w.Dir, "state", "intents")
	if err := os.Link(filepath.Join(intents, second.UID+".newest"), filepath.Join(intents, "uid-other.newest")); err != nil {
		t.Fatal(err)
	}
	lock()
	a, err := agent.New(o)
	unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{
		`msg="make chain" application=team/second interface=cn0 `, `it is passed over" application=team/second path=`,
		`msg="remove the empty directories of an application" application=team/second `,
	} {
		if !strings.Contains(log.String(), says) {
			t.Errorf("the log does not say %q:\n%s", says, log.String())
		}
	}
}
