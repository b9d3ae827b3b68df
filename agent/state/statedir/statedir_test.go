package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestTheDirectoryKeepsIntentsAndWhatRuns(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	read := func() map[string]string {
		t.Helper()
		all, err := d.Intents()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, k := range all {
			out[filepath.Base(k.Path)] = string(k.Envelope)
		}
		return out
	}
	want := func(files map[string]string) {
		t.Helper()
		got := read()
		for name, body := range files {
			if got[name] != body {
				t.Errorf("%s = %q, want %q", name, got[name], body)
			}
		}
		if len(got) != len(files) {
			t.Errorf("kept %v", got)
		}
	}
	// A uid is any string.
	uid := "ns/../a.b"
	file := "ns%2F..%2Fa.b"
	if err := d.PutIntent(uid, Newest, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := d.PutIntent(uid, Deployed, []byte("one")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "one", file + ".deployed": "one"})
	if err := d.PutIntent(uid, Newest, []byte("two")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "two", file + ".deployed": "one"})
	if err := d.PutIntent(uid, Deployed, []byte("two")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "two", file + ".deployed": "two"})
	for range 2 {
		if err := d.DropIntent(uid, Deployed); err != nil {
			t.Fatal(err)
		}
	}
	want(map[string]string{file + ".newest": "two"})
	// What a killed agent was writing is swept away.
	for _, leftover := range []string{".new-123", file + ".linking"} {
		if err := os.WriteFile(filepath.Join(d.path, "intents", leftover), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want(map[string]string{file + ".newest": "two"})
	if entries, err := os.ReadDir(filepath.Join(d.path, "intents")); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestAFullDiskLosesNothingThatWasKept(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.PutIntent("uid", Newest, []byte("one")); err != nil {
		t.Fatal(err)
	}
	// A directory in the file's place fails the rename as a full disk fails the
	// write: the new one is not there, and no leftover is.
	if err := os.MkdirAll(filepath.Join(dir, "intents", "other.newest", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.PutIntent("other", Newest, []byte("two")); err == nil || !strings.Contains(err.Error(), "keep intent") {
		t.Errorf("PutIntent = %v", err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "intents"))
	if err != nil || len(entries) != 2 {
		t.Errorf("entries = %v, %v", entries, err)
	}
	if _, err := Open("/proc/nope"); err == nil || !strings.Contains(err.Error(), "make state directory") {
		t.Errorf("Open where nothing can be made = %v", err)
	}
}

func TestAnotherMountInTheSameBootIsTold(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		boot   string
		device uint64
		want   bool
	}{{"one\n", 7, false}, {"one\n", 7, false}, {"one\n", 8, true}, {"one\n", 8, false}, {"two\n", 9, false}, {"two\n", 7, true}} {
		if got, err := d.NoteMount(step.boot, step.device); got != step.want || err != nil {
			t.Errorf("step %d: %v, %v", i, got, err)
		}
	}
}

// TestAStateFolderOfOthersIsNotUsed, and one that is open to others is closed to them.
func TestAStateFolderOfOthersIsNotUsed(t *testing.T) {
	need.Root(t)
	theirs, ours := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "state")
	for _, dir := range []string{theirs, ours} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(theirs, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(theirs); !errors.Is(err, pins.ErrExposed) || !strings.Contains(err.Error(), "uid 1000") {
		t.Errorf("a folder of another user: %v", err)
	}
	if _, err := Open(ours); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(ours); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a folder that was open to others is %v, %v", info, err)
	}
}

func TestWhatAKilledAgentWasWritingIsRemoved(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, leftover := range []string{filepath.Join(dir, ".new-123"), filepath.Join(d.Objects(), ".new-123")} {
		if err := os.WriteFile(leftover, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(leftover); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", leftover, err)
		}
	}
}
