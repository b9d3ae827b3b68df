package changes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/test/harness/await"
)

// TestHintsAreGatheredAndSignalsAreNot has pods, devices and pins change after a reconcile began.
func TestHintsAreGatheredAndSignalsAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		asked := func(what, want string) {
			t.Helper()
			synctest.Wait()
			var got string
			select {
			case <-c.Signals():
				got = "signal"
			case <-c.Hints():
				got = "hint"
			default:
			}
			if got != want || c.IsAsked() {
				t.Errorf("%s: a reconcile is asked for by %q, want %q alone", what, got, want)
			}
		}
		hints := func() {
			c.devices()
			c.AskPins()
			c.Hint()
		}
		hints()
		asked("a hint long after the last reconcile", "hint")
		c.Begin()
		hints()
		asked("hints after one began", "")
		c.Signal()
		asked("a signal after that", "signal")
		c.Pods(containers.Pod{})
		asked("a change of pods, before any are chosen", "signal")
		<-time.After(c.Pause - 1)
		asked("less than the pause later", "")
		<-time.After(1)
		asked("the pause later", "hint")
		hints()
		asked("a hint where none has begun since", "hint")
		c.Begin()
		hints()
		<-time.After(c.Pause / 2)
		c.Begin()
		<-time.After(c.Pause)
		asked("the pause after one that began after the hints", "")
		hints()
		c.Signal()
		c.Begin()
		asked("a reconcile that began after a hint and a signal", "")
	})
}

func TestPinsAreFollowedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watch{}
		for i, want := range []time.Duration{0, time.Second, time.Second / 4, 0} {
			if got := w.FollowsIn(); got != want {
				t.Errorf("look %d: pins are followed in %v, want %v", i, got, want)
			}
			if i == 0 {
				w.FollowPins()
				continue
			}
			<-time.After(3 * time.Second / 4)
		}
	})
}

// only is one directory of pins.
type only string

func (o only) Directories() ([]string, error) { return []string{string(o)}, nil }

// TestADirectoryThatWasJustMadeIsWatched before pins are followed again.
func TestADirectoryThatWasJustMadeIsWatched(t *testing.T) {
	root := t.TempDir()
	c := New()
	c.Pause = 0
	w := &Watch{changes: c, log: slog.New(slog.DiscardHandler), watched: only(root), done: make(chan struct{})}
	if err := w.startPins(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	w.FollowPins()
	dir := filepath.Join(root, "uid", "+links")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a pin that went to be noticed", time.Minute, func() bool {
		pin := filepath.Join(dir, "pin")
		if err := errors.Join(os.WriteFile(pin, nil, 0o600), os.Remove(pin)); err != nil {
			t.Fatal(err)
		}
		return c.IsAsked() && c.ArePinsAsked()
	})
}

// TestDirectoriesThatComeAndGoBlockNoLoop makes, moves and removes directories, of which the library tells errors while it holds its lock.
func TestDirectoriesThatComeAndGoBlockNoLoop(t *testing.T) {
	root := t.TempDir()
	w := &Watch{changes: New(), log: slog.New(slog.DiscardHandler), watched: only(root), done: make(chan struct{})}
	if err := w.startPins(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.FollowPins()
		for range 2000 {
			uid, gone := filepath.Join(root, "uid"), filepath.Join(root, "gone")
			if err := errors.Join(os.MkdirAll(filepath.Join(uid, "+links"), 0o700), os.Rename(uid, gone), os.RemoveAll(gone)); err != nil {
				t.Error(err)
			}
			w.FollowPins()
		}
		w.Stop()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the loop waits for a watch that is stuck")
	}
}
