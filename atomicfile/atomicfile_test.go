package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/atomicfile"
)

func TestAFileIsReplacedWholeOrNotAtAll(t *testing.T) {
	for name, write := range map[string]func(string, []byte) error{"synced": atomicfile.Write, "unsynced": atomicfile.WriteUnsynced} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "file")
			for _, content := range []string{"first", "second"} {
				if err := write(path, []byte(content)); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(path); err != nil || string(got) != content {
					t.Errorf("read %q, %v, want %q", got, err, content)
				}
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("others may read it: %v, %v", info.Mode(), err)
			}
			// A folder stands where the file should be.
			taken := filepath.Join(folder, "taken")
			if err := os.MkdirAll(filepath.Join(taken, "below"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(taken, []byte("content")); err == nil {
				t.Error("a folder was replaced")
			}
			if left, err := atomicfile.Temporary(folder); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if err := write(filepath.Join(folder, "none", "file"), nil); !os.IsNotExist(err) {
				t.Errorf("without a folder: %v", err)
			}
		})
	}
}

func TestWhatAProcessLeftIsFound(t *testing.T) {
	folder := t.TempDir()
	f, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := atomicfile.Temporary(folder)
	if err != nil || len(left) != 1 || left[0] != f.Name() || !atomicfile.IsTemporary(filepath.Base(left[0])) {
		t.Errorf("found %v, %v, want %s", left, err, f.Name())
	}
}
