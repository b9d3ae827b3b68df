package nodemode

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestAnotherSourceTakesNothingDownUntilItIsConfirmed(t *testing.T) {
	for name, mistype := range map[string]func(*stage) func(*Options){
		"another folder": func(s *stage) func(*Options) {
			return func(o *Options) { o.Source = s.t.TempDir() }
		},
		"another path in it": func(s *stage) func(*Options) {
			if err := os.Mkdir(filepath.Join(s.defs, "empty"), 0o755); err != nil {
				s.t.Fatal(err)
			}
			return func(o *Options) { o.Path = "empty" }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			ref := s.push(first, "app:v1", "team-a")
			for i := range 3 {
				s.define(fmt.Sprintf("app-%d", i), ref)
			}
			h := s.open()
			before := s.pass(h)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			wrong := mistype(s)
			var log bytes.Buffer
			for range 2 { // A restart is no confirmation.
				log.Reset()
				h = s.open(wrong, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
				for name, a := range s.pass(h) {
					if running(a) == 0 || running(a) != running(before[name]) {
						t.Errorf("%s: program %d became %d", name, running(before[name]), running(a))
					}
					if said := a.Condition(v1alpha1.ConditionReady).Message; !strings.Contains(said, "until the change is confirmed: the source is another") {
						t.Errorf("%s: says %q", name, said)
					}
				}
				protection := h.Status().Source.UnloadProtection
				if protection == nil || len(protection.Applications) != 3 || !strings.Contains(log.String(), protection.Revision) ||
					!strings.Contains(log.String(), "level=ERROR") {
					t.Fatalf("unload protection %+v, log %s", protection, &log)
				}
				if err := h.Close(); err != nil {
					t.Fatal(err)
				}
			}
			h = s.open()
			if s.pass(h); h.Status().Source.UnloadProtection != nil {
				t.Errorf("the right source is held by unload protection: %+v", h.Status().Source.UnloadProtection)
			}
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			h = s.open(wrong)
			s.pass(h)
			if released, err := h.Confirm(h.Status().Source.UnloadProtection.Revision); err != nil || len(released.Applications) != 3 {
				t.Fatalf("released %+v: %v", released, err)
			}
			if left := s.pass(h); len(left) != 0 || s.pins() != 0 {
				t.Errorf("left after it was confirmed: %v", left)
			}
		})
	}
}

func TestABrokenFileOfAnotherSourceIsNoWayPastUnloadProtection(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	for i := range 3 {
		s.define(fmt.Sprintf("app-%d", i), ref)
	}
	h := s.open()
	s.pass(h)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	wrong := t.TempDir()
	broken := filepath.Join(wrong, "a.cue")
	s.write(broken, []byte("package a\n\nimport \"strings\"\n\nx: {"))
	h = s.open(func(o *Options) { o.Source = wrong })
	s.pass(h)
	s.write(broken, []byte("package a\n"))
	for name, a := range s.pass(h) {
		if running(a) == 0 {
			t.Errorf("%s was unloaded once the file was fixed", name)
		}
	}
	if h.Status().Source.UnloadProtection == nil {
		t.Error("unload protection does not hold")
	}
}

// TestUnloadProtectionOnTheSourceHoldsNoRevocation has what is not defined in another
// source be evaluated all the same.
func TestUnloadProtectionOnTheSourceHoldsNoRevocation(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("one", ref)
	s.define("two", ref)
	h := s.open()
	s.pass(h)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	s.signers["team-a"].Spec.Revoked = true
	s.writeSigners()
	for name, a := range s.pass(s.open(func(o *Options) { o.Source = t.TempDir() })) {
		if running(a) != 0 {
			t.Errorf("%s still runs: %+v", name, a.Conditions)
		}
	}
}

func TestWhatTheSameSourceNoLongerDefinesGoesAtOnce(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	for i := range 3 {
		s.define(fmt.Sprintf("app-%d", i), ref)
	}
	h := s.open()
	s.pass(h)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.define(fmt.Sprintf("app-%d", i), "")
	}
	h = s.open(func(o *Options) { o.Source += "/." })
	if left := s.pass(h); len(left) != 0 || h.Status().Source.UnloadProtection != nil {
		t.Errorf("left: %v, unload protection %+v", left, h.Status().Source.UnloadProtection)
	}
}
