package accepted_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// remembered lists the UIDs that the agent knows, and the files it keeps.
func remembered(t *testing.T, w *world.World, a *agent.Agent) (uids, files []string) {
	t.Helper()
	for _, o := range a.Intents() {
		uids = append(uids, o.Payload().UID)
	}
	entries, err := os.ReadDir(filepath.Join(w.Dir, "state", "intents"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files = append(files, e.Name())
	}
	return uids, files
}

func TestATombstoneIsForgottenOnceNothingIsLeftAndNobodyHasIt(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	stays, goes, litters := w.Intent("stays", "raw_tp_count", world.RawProgram()), w.Intent("goes", "raw_tp_count", world.RawProgram()), w.Intent("litters",
		"raw_tp_count",
		world.RawProgram())
	if err := w.Accept(a, stays, goes, litters); err != nil {
		t.Fatal(err)
	}
	// Something of somebody else's keeps the last one's folder.
	stray := filepath.Join(w.BPFFS, litters.UID, "stray")
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(stray) })
	tomb := func(p intent.Payload) intent.Payload {
		return intent.Payload{Application: p.Application, UID: p.UID, Serial: p.Serial + 10, Tombstone: true, Reason: "gone"}
	}
	if err := w.Accept(a, tomb(goes), tomb(litters)); err != nil {
		t.Fatal(err)
	}
	check := func(when string, uids, files []string) {
		t.Helper()
		if u, f := remembered(t, w, a); !slices.Equal(u, uids) || !slices.Equal(f, files) {
			t.Errorf("%s: known %v, kept %v; want %v, %v", when, u, f, uids, files)
		}
	}
	all := []string{goes.UID, litters.UID, stays.UID}
	files := []string{goes.UID + ".newest", litters.UID + ".newest", stays.UID + ".deployed", stays.UID + ".newest"}
	a.Forget(func(string) bool { return true })
	check("while its intent is there", all, files)
	a.Forget(func(string) bool { return false })
	check("when it is gone", all[1:], files[1:])
	a.Reconcile(context.Background())
	check("after another pass", all[1:], files[1:])
	if s := a.Status(); len(s) == 0 || s[len(s)-1].UID != stays.UID || s[len(s)-1].Conditions[0].Reason != "Deployed" {
		t.Errorf("Status = %+v", s)
	}
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	stop()
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	a.Forget(func(string) bool { return false })
	check("when nothing is left, after a restart", all[2:], files[2:])
}

// TestWhatIsForgottenDuringAPassStaysSo: the clock is read after the reconcile looked
// which applications there are.
func TestWhatIsForgottenDuringAPassStaysSo(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	var (
		a     *agent.Agent
		armed atomic.Bool
	)
	o := w.Options()
	o.Clock = func() time.Time {
		if armed.Load() {
			a.Forget(func(string) bool { return false })
		}
		return time.Now()
	}
	a, _ = w.Run(o)
	app := w.Intent("app", "raw_tp_count", world.RawProgram())
	gone := intent.Payload{Application: app.Application, UID: app.UID, Serial: app.Serial + 1, Tombstone: true, Reason: "gone"}
	if err := w.Accept(a, gone); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	a.Reconcile(t.Context())
	if uids, files := remembered(t, w, a); len(uids)+len(files) > 0 {
		t.Errorf("known %v, kept %v", uids, files)
	}
}
