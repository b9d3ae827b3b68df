package accepted_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestSelectionIsDecidedAnewWhenTheLabelsOfTheNodeChange(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	o := w.Options()
	o.Labels = map[string]string{"role": "edge"}
	o.SweepInterval = time.Hour
	a := w.StartWith(o)
	app := w.Intent("app", "raw_tp_count", world.RawProgram())
	app.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge"}}
	everywhere := w.Intent("everywhere", "raw_tp_count", world.RawProgram())
	if err := w.Accept(a, app, everywhere); err != nil {
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
		if err := w.Accept(a); err != nil {
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
	w, other := world.New(t), world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, w.Intent("old", "raw_tp_count", world.RawProgram())); err != nil {
		t.Fatal(err)
	}
	fresh := other.Seal(w.Intent("new", "raw_tp_count", world.RawProgram()))
	if err := a.Accept(fresh); !errors.Is(err, intent.ErrSeal) {
		t.Fatalf("Accept before = %v", err)
	}
	a.Retrust(other.Key.Trust)
	if err := a.Accept(fresh); err != nil {
		t.Fatalf("Accept after = %v", err)
	}
	if err := a.Accept(w.Seal(w.Intent("late", "raw_tp_count", world.RawProgram()))); !errors.Is(err, intent.ErrSeal) {
		t.Errorf("Accept by the old key = %v", err)
	}
	if err := w.Accept(a); err != nil {
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
	w, other := world.New(t), world.New(t)
	both, err := intent.NewTrust(w.Key.Public(), other.Key.Public())
	if err != nil {
		t.Fatal(err)
	}
	o := w.Options()
	o.Trust = both
	a, stop := w.Run(o)
	app, gone := w.Intent("app", "raw_tp_count", world.RawProgram()), w.Intent("gone", "raw_tp_count", world.RawProgram())
	gone.Tombstone = true
	if err := w.Accept(a, app, gone); err != nil {
		t.Fatal(err)
	}
	before := a.Status()[0]
	// Under the same serial nothing else is taken, whoever sealed it.
	forged := app
	forged.Signers = []string{"nobody"}
	if err := a.Accept(other.Seal(app), other.Seal(gone)); err != nil {
		t.Fatal(err)
	}
	if err := a.Accept(other.Seal(forged)); !errors.Is(err, intent.ErrConflict) {
		t.Fatalf("Accept of another intent under the same serial = %v, want %v", err, intent.ErrConflict)
	}
	// The intent that is kept is sent again, which settles which of them holds.
	if err := a.Accept(other.Seal(app)); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	if now := a.Status(); len(now) != 1 || now[0].Revision != before.Revision || now[0].Serial != before.Serial {
		t.Errorf("status %+v, before %+v", now, before)
	}
	stop()
	// The former key is gone by the next start.
	o.Trust = other.Key.Trust
	a, _ = w.Run(o)
	if err := w.Accept(a); err != nil {
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
	w := world.New(t)
	a, stop := w.Start()
	app := w.Intent("app", "raw_tp_count", world.RawProgram())
	tomb := intent.Payload{Application: app.Application, UID: app.UID, Serial: app.Serial + 1, Tombstone: true, Reason: "gone"}
	if err := w.Accept(a, app); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a, tomb); err != nil {
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
	a, _ = w.Start()
	select {
	case <-a.Reconciled():
	case <-time.After(time.Minute):
		t.Fatal("no pass")
	}
	check(a)
}
