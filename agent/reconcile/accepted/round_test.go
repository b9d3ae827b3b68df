package accepted_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/statedir"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// node has a Store in a folder, and seals intents of one application.
type node struct {
	*accepted.Store
	t   *testing.T
	key seals.Key
	dir string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, key: seals.New(t), dir: t.TempDir()}
	n.open()
	return n
}

// open opens the folder, as after a start.
func (n *node) open() {
	n.t.Helper()
	dir, err := statedir.Open(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Store, err = accepted.Open(accepted.Options{Log: slog.New(slog.DiscardHandler), Dir: dir, Trust: n.key.Trust, Wake: func() {}})
	if err != nil {
		n.t.Fatal(err)
	}
}

// accept accepts an intent of a serial and an object.
func (n *node) accept(serial int64, object string, evidence ...intent.Artifact) error {
	n.t.Helper()
	return n.Accept(n.key.Seal(n.t, intent.Payload{
		Evidence:    evidence,
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, UID: "app", Serial: serial, ImageDigest: "sha256:image",
		ObjectDigest: "sha256:" + object, Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "sys_enter"}}}},
	}))
}

// isSettled reports whether Settled returns at once. With a context that ended as well, it may take either way.
func (n *node) isSettled() bool {
	ctx, cancel := context.WithCancel(n.t.Context())
	cancel()
	for range 50 {
		if n.Settled(ctx) == nil {
			return true
		}
	}
	return false
}

// TestEvidenceIsNoOtherIntent has one intent come with evidence and without it, under one serial.
func TestEvidenceIsNoOtherIntent(t *testing.T) {
	n := newNode(t)
	for range 2 {
		if err := errors.Join(n.accept(1, "a"), n.accept(1, "a", intent.Artifact{Kind: "bundle", Manifest: "sha256:1"})); err != nil {
			t.Error(err)
		}
		n.open()
	}
}

// TestAReconcileHandsOverWhatItFound, unless something comes meanwhile: then the next one has that, with what was found.
func TestAReconcileHandsOverWhatItFound(t *testing.T) {
	for sentence, c := range map[string]struct {
		meanwhile           func(*node) error
		settled, inConflict bool
		serial              int64
	}{
		"nothing comes":                     {func(*node) error { return nil }, true, false, 1},
		"the same intent comes":             {func(n *node) error { return n.accept(1, "one") }, true, false, 1},
		"a newer intent comes":              {func(n *node) error { return n.accept(2, "two") }, false, false, 2},
		"another comes of the same serial":  {func(n *node) error { return n.accept(1, "other") }, false, true, 1},
		"the node has other labels":         {func(n *node) error { n.Relabel(map[string]string{"a": "b"}); return nil }, false, false, 1},
		"a newer one comes before this one": {func(n *node) error { return errors.Join(n.accept(3, "three"), n.accept(2, "two")) }, false, false, 3},
	} {
		t.Run(sentence, func(t *testing.T) {
			n := newNode(t)
			if err := n.accept(1, "one"); err != nil {
				t.Fatal(err)
			}
			r := n.Store.Begin()
			if r.HasArrived() {
				t.Error("an intent that the reconcile has waits for the next one")
			}
			if err := c.meanwhile(n); err != nil != (c.inConflict || errors.Is(err, intent.ErrOlder)) {
				t.Fatal(err)
			}
			if r.HasArrived() == c.settled {
				t.Errorf("something waits for the next reconcile: %v", !c.settled)
			}
			app := r.Applications[0]
			app.Loaded, app.Status = []string{"revision"}, report.ApplicationStatus{UID: "app", Revision: "revision"}
			if err := r.KeepDeployed(app); err != nil {
				t.Fatal(err)
			}
			r.Finish(accepted.Findings{Outcomes: map[string]*report.Outcome{"app": {}}, Observed: true})
			if got := n.isSettled(); got != c.settled {
				t.Errorf("settled: %v", got)
			}
			if s := n.Status(); len(s) != 1 || s[0].Revision != "revision" {
				t.Errorf("status %+v", s)
			}
			next := n.Store.Begin().Applications[0]
			if next.Newest.Payload().Serial != c.serial || next.Deployed.Payload().Serial != 1 || len(next.Loaded) != 1 || (next.Conflict != nil) != c.inConflict {
				t.Errorf("the next reconcile has %+v", next)
			}
			n.open()
			if again := n.Store.Begin().Applications[0]; again.Newest.Payload().Serial != c.serial || again.Deployed.Payload().Serial != 1 {
				t.Errorf("after a start it has %+v", again)
			}
		})
	}
}

// TestOrphansStayWhereTheNodeCouldNotBeRead has one reconcile find one, and the next nothing.
func TestOrphansStayWhereTheNodeCouldNotBeRead(t *testing.T) {
	n := newNode(t)
	n.Store.Begin().Finish(accepted.Findings{Orphans: []report.ApplicationStatus{{UID: "lost"}}, Observed: true})
	for _, observed := range []bool{false, true} {
		n.Store.Begin().Finish(accepted.Findings{Observed: observed})
		if got := len(n.Report()); got == 0 != observed {
			t.Errorf("observed: %v, and %d are reported", observed, got)
		}
	}
}
