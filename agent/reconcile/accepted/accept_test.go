package accepted_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAnIntentThatComesDuringAPassFallsBackToWhatThatPassMadeRun: one runs, two
// is being loaded, and three, which the verifier rejects, comes meanwhile.
func TestAnIntentThatComesDuringAPassFallsBackToWhatThatPassMadeRun(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "ac0", "ac1")
	program := v1alpha1.Program{Name: "count_packets", Attach: world.On("xdp", "ac0")}
	one, two := w.Intent("app", "xdp_count", program), w.Intent("app", "xdp_count_v2", program)
	three := w.Seal(w.Intent("app", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: world.On("xdp", "ac0")}))
	var a *agent.Agent
	o := w.Options()
	attached := 0
	o.Observer = attachments(func() {
		// The reconcile that attaches version two does not know of version three.
		if attached++; attached == 2 {
			if err := a.Accept(three); err != nil {
				t.Error(err)
			}
		}
	})
	a, stop := w.Run(o)
	if err := w.Accept(a, one); err != nil {
		t.Fatal(err)
	}
	before := a.Status()[0].Revision
	check := func(when string, err error) {
		t.Helper()
		s := a.Status()[0]
		if err == nil || s.Revision == before || s.Revision == "" || s.Revision == s.Wanted || s.Conditions[0].Reason != "KeptPrevious" {
			t.Errorf("%s: Settled = %v, first %s, now %s, wanted %s, %+v", when, err, before, s.Revision, s.Wanted, s.Conditions[0])
		}
	}
	check("in the same run", w.Accept(a, two))
	stop()
	a, _ = w.Start()
	check("after a restart", w.Accept(a))
}

// attachments is an observer that is called when a program was attached.
type attachments func()

func (attachments) Loaded(agent.Loadable, time.Duration, error) {}

func (f attachments) Attached(string, time.Duration, error) { f() }

func (attachments) Healed(agent.Drift) {}

func TestATombstoneIsWorkedOnWhereNothingCanBeKept(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		block, free func(t *testing.T, dir string)
		kept        bool
	}{
		"the disk is full": {world.Fill, func(*testing.T, string) {}, true},
		"the disk is read only": {
			func(t *testing.T, dir string) { world.Remount(t, dir, unix.MS_RDONLY) },
			func(t *testing.T, dir string) { world.Remount(t, dir, 0) }, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			dir := world.SmallDisk(t, w)
			a, stop := w.Start()
			app := w.Intent("app", "raw_tp_count", world.RawProgram())
			if err := w.Accept(a, app); err != nil {
				t.Fatal(err)
			}
			c.block(t, dir)
			// What is no tombstone is not accepted, and the error says whose it is.
			refused := new(agent.AcceptError)
			other := w.Intent("other", "raw_tp_count", world.RawProgram())
			if err := a.Accept(w.Seal(other)); !errors.As(err, &refused) || refused.Application != other.Application ||
				!strings.Contains(err.Error(), "accept intent of other") {
				t.Errorf("Accept of another = %v", err)
			}
			tomb := w.Seal(intent.Payload{Application: app.Application, UID: app.UID, Serial: app.Serial + 1, Tombstone: true, Reason: "revoked"})
			if err := a.Accept(tomb); (err == nil) != c.kept || err != nil && (!errors.As(err, &refused) || refused.Application != app.Application) {
				t.Errorf("Accept of the tombstone = %v", err)
			}
			if err := w.Accept(a); err != nil {
				t.Error(err)
			}
			if pins := world.Pins(w); len(pins) != 0 {
				t.Errorf("it still runs: %v", pins)
			}
			// Sent again, it is kept as soon as it can be.
			c.free(t, dir)
			if err := a.Accept(tomb); err != nil {
				t.Errorf("Accept of the tombstone again = %v", err)
			}
			stop()
			a, _ = w.Start()
			if all := a.Intents(); len(all) != 1 || !all[0].Payload().Tombstone {
				t.Errorf("after a restart: %+v", all)
			}
		})
	}
}

func TestWhatIsKeptCountsByItsSerialAndUnderItsOwnName(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	dir := filepath.Join(w.Dir, "state", "intents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	older, newer := w.Intent("app", "raw_tp_count", world.RawProgram()), w.Intent("app", "raw_tp_count", world.RawProgram())
	stray := w.Intent("app", "raw_tp_count", world.RawProgram())
	for name, p := range map[string]intent.Payload{"uid-app.newest": older, "uid-app.deployed": newer, "uid-zzz.newest": stray} {
		if err := os.WriteFile(filepath.Join(dir, name), w.Seal(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := w.Start()
	all := a.Intents()
	if len(all) != 1 || all[0].Payload().Serial != newer.Serial {
		t.Errorf("restored %+v, want serial %d", all, newer.Serial)
	}
	if err := a.Accept(w.Seal(older)); !errors.Is(err, intent.ErrOlder) {
		t.Errorf("Accept of an older = %v", err)
	}
}
