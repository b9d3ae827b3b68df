package agent_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestSelectionIsDecidedAnewWhenTheLabelsOfTheNodeChange(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	o := w.options()
	o.Labels = map[string]string{"role": "edge"}
	o.SweepInterval = time.Hour
	a := w.startWith(o)
	app := w.intent("app", "raw_tp_count", rawProgram())
	app.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}}
	everywhere := w.intent("everywhere", "raw_tp_count", rawProgram())
	if err := w.accept(a, app, everywhere); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		labels map[string]string
		reason string
	}{
		{map[string]string{"role": "core"}, "NotSelected"},
		{map[string]string{"role": "edge", "more": "x"}, "Deployed"},
		{map[string]string{}, "NotSelected"},
		{nil, "Deployed"},
	} {
		a.Relabel(c.labels)
		if err := w.accept(a); err != nil {
			t.Fatal(err)
		}
		s := a.Status()
		if len(s) != 2 || s[0].Conditions[0].Reason != c.reason || (s[0].Revision != "") != (c.reason == "Deployed") || s[1].Conditions[0].Reason != "Deployed" {
			t.Errorf("labels %v: %+v", c.labels, s)
		}
	}
}

func TestKeysOfSealsAreReplacedWhileItRuns(t *testing.T) {
	need.Kernel(t)
	w, other := newWorld(t), newWorld(t)
	a, _ := w.start()
	if err := w.accept(a, w.intent("old", "raw_tp_count", rawProgram())); err != nil {
		t.Fatal(err)
	}
	fresh := other.seal(w.intent("new", "raw_tp_count", rawProgram()))
	if err := a.Accept(fresh); !errors.Is(err, intent.ErrSeal) {
		t.Fatalf("Accept before = %v", err)
	}
	a.Retrust(other.key.Trust)
	if err := a.Accept(fresh); err != nil {
		t.Fatalf("Accept after = %v", err)
	}
	if err := a.Accept(w.seal(w.intent("late", "raw_tp_count", rawProgram()))); !errors.Is(err, intent.ErrSeal) {
		t.Errorf("Accept by the old key = %v", err)
	}
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Status() {
		if s.Conditions[0].Reason != "Deployed" {
			t.Errorf("%+v", s)
		}
	}
}

func TestASealThatIsRenewedIsKept(t *testing.T) {
	need.Kernel(t)
	w, other := newWorld(t), newWorld(t)
	both, err := intent.NewTrust(w.key.Public(), other.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	o := w.options()
	o.Trust = both
	a, stop := w.run(o)
	app, gone := w.intent("app", "raw_tp_count", rawProgram()), w.intent("gone", "raw_tp_count", rawProgram())
	gone.Tombstone = true
	if err := w.accept(a, app, gone); err != nil {
		t.Fatal(err)
	}
	before := a.Status()[0]
	// Under the same serial nothing else is taken, whoever sealed it.
	forged := app
	forged.Signers = []string{"nobody"}
	if err := a.Accept(other.seal(app), other.seal(gone)); err != nil {
		t.Fatal(err)
	}
	if err := a.Accept(other.seal(forged)); !errors.Is(err, intent.ErrConflict) {
		t.Fatalf("Accept of another intent under the same serial = %v, want %v", err, intent.ErrConflict)
	}
	// The intent that is kept is sent again, which settles which of them holds.
	if err := a.Accept(other.seal(app)); err != nil {
		t.Fatal(err)
	}
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	if now := a.Status(); len(now) != 1 || now[0].Revision != before.Revision || now[0].Serial != before.Serial {
		t.Errorf("status %+v, before %+v", now, before)
	}
	stop()
	// The former key is gone by the next start.
	o.Trust = other.key.Trust
	a, _ = w.run(o)
	if err := w.accept(a); err != nil {
		t.Fatal(err)
	}
	all := a.Intents()
	if s := a.Status(); len(all) != 2 || len(s) != 1 || s[0].Conditions[0].Reason != "Deployed" || s[0].Revision != before.Revision {
		t.Errorf("restored %+v, status %+v", all, s)
	}
	for _, i := range all {
		if p := i.Payload(); len(p.Signers) > 0 {
			t.Errorf("another intent of the same serial was kept: %+v", p)
		}
	}
}

func TestATombstoneThatWasWorkedOffIsReportedThoughItIsNoStatusAnyMore(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t)
	a, stop := w.start()
	app := w.intent("app", "raw_tp_count", rawProgram())
	tomb := intent.Payload{Application: app.Application, UID: app.UID, Serial: app.Serial + 1, Tombstone: true, Reason: "gone"}
	if err := w.accept(a, app); err != nil {
		t.Fatal(err)
	}
	if err := w.accept(a, tomb); err != nil {
		t.Fatal(err)
	}
	check := func(a *agent.Agent) {
		t.Helper()
		if s := a.Status(); len(s) != 0 {
			t.Errorf("Status = %+v", s)
		}
		if r := a.Report(); len(r) != 1 || !r[0].Tombstone || r[0].Serial != tomb.Serial || r[0].Revision != "" || r[0].Conditions[0].Reason != "Unloaded" {
			t.Errorf("Report = %+v", r)
		}
	}
	check(a)
	stop()
	a, _ = w.start()
	select {
	case <-a.Reconciled():
	case <-time.After(time.Minute):
		t.Fatal("no pass")
	}
	check(a)
}
