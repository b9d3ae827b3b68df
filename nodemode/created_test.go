package nodemode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// created is when the one application that the agent has an intent of was created.
func created(t *testing.T, h *Host) int64 {
	t.Helper()
	intents := h.agent.Intents()
	if len(intents) != 1 {
		t.Fatalf("there are %d intents", len(intents))
	}
	p := intents[0].Payload()
	return p.CreatedAt()
}

// TestAnApplicationIsAsOldAsItsFirstIntent: no author claims an age, an update makes
// nothing older or younger, and what was taken out and comes back is new.
func TestAnApplicationIsAsOldAsItsFirstIntent(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	claims := strings.Replace(string(s.definition("app", ref)), "metadata:\n", "metadata:\n  creationTimestamp: \"2001-01-01T00:00:00Z\"\n", 1)
	file := filepath.Join(s.defs, "app.yaml")
	write := func(body string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(claims)
	h := s.open()
	s.pass(h)
	// What only a server writes is dropped, as a server drops it.
	claimed := created(t, h)
	write(string(s.definition("app", ref)))
	s.pass(h)
	began := created(t, h)
	if began < s.now.Add(-time.Hour).UnixMilli() || claimed != began {
		t.Errorf("it was created at %s, and at %s where it claims to be old", time.UnixMilli(began), time.UnixMilli(claimed))
	}
	s.now = s.now.Add(time.Hour)
	write(string(s.definition("app", s.push(second, "app:v2", "team-a"))))
	s.pass(h)
	if serial := h.agent.Intents()[0].Payload().Serial; serial < s.now.Add(-time.Minute).UnixMilli() || created(t, h) != began {
		t.Errorf("after an update, serial %d, it was created at %s and not %s", serial, time.UnixMilli(created(t, h)), time.UnixMilli(began))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.pass(h)
	s.now = s.now.Add(time.Hour)
	write(string(s.definition("app", ref)))
	s.pass(h)
	if again := created(t, h); again < began+time.Hour.Milliseconds() {
		t.Errorf("after it was taken out it was created at %s", time.UnixMilli(again))
	}
}
