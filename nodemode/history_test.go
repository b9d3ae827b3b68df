package nodemode

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// versions is the history of an application in short.
func versions(a Application) string {
	var lines []string
	for _, v := range a.History {
		line := fmt.Sprint(v.Version, " ", v.Result)
		if len(v.Changes) > 0 {
			line += " (" + strings.Join(v.Changes, ", ") + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestAHostKeepsTheLastVersions(t *testing.T) {
	s := newStage(t)
	one, two, unsigned := s.push(first, "app:v1", "team-a"), s.push(second, "app:v2", "team-a"), s.push("Dual MPL/GPL", "app:v3")
	h := s.open()
	is := func(want string) Application {
		t.Helper()
		a := s.pass(h)["app"]
		if got := versions(a); got != want {
			t.Errorf("history is %q, want %q", got, want)
		}
		return a
	}
	s.define("app", one)
	if v := is("1 Deployed").History[0]; v.SignedBy != "team-a" || v.Digest == "" || v.Policies == "" || v.Image != one || v.Serial == 0 || v.Time.IsZero() {
		t.Errorf("records %+v", v)
	}
	if kept, err := os.ReadFile(filepath.Join(s.state, historyFile)); err != nil || !strings.Contains(string(kept), `"Deployed"`) {
		t.Errorf("skep run --once leaves %s: %v", kept, err)
	}
	s.now = s.now.Add(time.Minute)
	s.define("app", two)
	is("2 Deployed (image digest); 1 Deployed")
	s.now = s.now.Add(time.Minute)
	s.define("app", s.push(second, "app:v2-again"))
	is("2 Deployed (image digest); 1 Deployed")
	is("2 Deployed (image digest); 1 Deployed")
	s.define("app", unsigned)
	is("3 Denied (image digest); 2 Deployed (image digest); 1 Deployed")
	before, err := os.ReadFile(filepath.Join(s.state, historyFile))
	if err != nil {
		t.Fatal(err)
	}
	s.pass(h)
	if now, err := os.ReadFile(filepath.Join(s.state, historyFile)); err != nil || !bytes.Equal(now, before) {
		t.Errorf("at rest it becomes\n%s\nand was\n%s\n%v", now, before, err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}

	h = s.open()
	a := is("3 Denied (image digest); 2 Deployed (image digest); 1 Deployed")
	if !strings.HasPrefix(a.History[0].Message, "denied by baseline/signed") {
		t.Errorf("it was %s", a.History[0].Message)
	}
	if err := os.Remove(filepath.Join(s.defs, "app.yaml")); err != nil {
		t.Fatal(err)
	}
	s.pass(h)
	if got := h.versions.of[uidOf(a.Identity())]; len(got) != 3 || got[1].Result != v1alpha1.VersionUnloaded {
		t.Errorf("after it was unloaded: %+v", got)
	}
}

// TestAHistoryThatCannotBeReadBeginsAnew, and keeps nothing from running.
func TestAHistoryThatCannotBeReadBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), historyFile)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hs histories
	if err := hs.open(path); err == nil || hs.of == nil || len(hs.of) != 0 {
		t.Errorf("has %v: %v", hs.of, err)
	}
	hs.of["a"] = []v1alpha1.ApplicationVersion{{Version: 1, Result: v1alpha1.VersionDenied}}
	var again histories
	if err := hs.save(); err != nil || again.open(path) != nil || len(again.of["a"]) != 1 {
		t.Errorf("has %v: %v", again.of, err)
	}
}
