package agent_test

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
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAnIntentThatComesDuringAPassFallsBackToWhatThatPassMadeRun: one runs, two
// is being loaded, and three, which the verifier rejects, comes meanwhile.
func TestAnIntentThatComesDuringAPassFallsBackToWhatThatPassMadeRun(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	veth(t, "ac0", "ac1")
	program := v1alpha1.Program{Name: "count_packets", Attach: on("xdp", "ac0")}
	one, two := w.intent("app", "xdp_count", program), w.intent("app", "xdp_count_v2", program)
	three := w.seal(w.intent("app", "xdp_rejected", v1alpha1.Program{Name: "xdp_rejected", Attach: on("xdp", "ac0")}))
	var a *agent.Agent
	o := w.options()
	attached := 0
	o.Observer = attachments(func() {
		// The reconcile that attaches version two does not know of version three.
		if attached++; attached == 2 {
			if err := a.Accept(three); err != nil {
				t.Error(err)
			}
		}
	})
	a, stop := w.run(o)
	if err := w.accept(a, one); err != nil {
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
	check("in the same run", w.accept(a, two))
	stop()
	a, _ = w.start()
	check("after a restart", w.accept(a))
}

// attachments is an observer that is called when a program was attached.
type attachments func()

func (attachments) Loaded(agent.Loadable, time.Duration, error) {}

func (f attachments) Attached(string, time.Duration, error) { f() }

func (attachments) Healed(agent.Drift) {}

// smallDisk is a state directory on a file system of its own.
func smallDisk(t *testing.T, w *world) (dir string) {
	t.Helper()
	dir = filepath.Join(w.dir, "state")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestATombstoneIsWorkedOnWhereNothingCanBeKept(t *testing.T) {
	need.Kernel(t)
	for sentence, c := range map[string]struct {
		block, free func(t *testing.T, dir string)
		kept        bool
	}{
		"the disk is full": {fill, func(*testing.T, string) {}, true},
		"the disk is read only": {
			func(t *testing.T, dir string) { remount(t, dir, unix.MS_RDONLY) },
			func(t *testing.T, dir string) { remount(t, dir, 0) }, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			dir := smallDisk(t, w)
			a, stop := w.start()
			app := w.intent("app", "raw_tp_count", rawProgram())
			if err := w.accept(a, app); err != nil {
				t.Fatal(err)
			}
			c.block(t, dir)
			// What is no tombstone is not accepted, and the error says whose it is.
			refused := new(agent.AcceptError)
			other := w.intent("other", "raw_tp_count", rawProgram())
			if err := a.Accept(w.seal(other)); !errors.As(err, &refused) || refused.Application != other.Application ||
				!strings.Contains(err.Error(), "accept intent of other") {
				t.Errorf("Accept of another = %v", err)
			}
			tomb := w.seal(intent.Payload{Application: app.Application, UID: app.UID, Serial: app.Serial + 1, Tombstone: true, Reason: "revoked"})
			if err := a.Accept(tomb); (err == nil) != c.kept || err != nil && (!errors.As(err, &refused) || refused.Application != app.Application) {
				t.Errorf("Accept of the tombstone = %v", err)
			}
			if err := w.accept(a); err != nil {
				t.Error(err)
			}
			if pins := w.pins(); len(pins) != 0 {
				t.Errorf("it still runs: %v", pins)
			}
			// Sent again, it is kept as soon as it can be.
			c.free(t, dir)
			if err := a.Accept(tomb); err != nil {
				t.Errorf("Accept of the tombstone again = %v", err)
			}
			stop()
			a, _ = w.start()
			if all := a.Intents(); len(all) != 1 || !all[0].Payload().Tombstone {
				t.Errorf("after a restart: %+v", all)
			}
		})
	}
}

// fill leaves no byte free.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsKeptCountsByItsSerialAndUnderItsOwnName(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	dir := filepath.Join(w.dir, "state", "intents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	older, newer := w.intent("app", "raw_tp_count", rawProgram()), w.intent("app", "raw_tp_count", rawProgram())
	stray := w.intent("app", "raw_tp_count", rawProgram())
	for name, p := range map[string]intent.Payload{"uid-app.newest": older, "uid-app.deployed": newer, "uid-zzz.newest": stray} {
		if err := os.WriteFile(filepath.Join(dir, name), w.seal(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := w.start()
	all := a.Intents()
	if len(all) != 1 || all[0].Payload().Serial != newer.Serial {
		t.Errorf("restored %+v, want serial %d", all, newer.Serial)
	}
	if err := a.Accept(w.seal(older)); !errors.Is(err, intent.ErrOlder) {
		t.Errorf("Accept of an older = %v", err)
	}
}
