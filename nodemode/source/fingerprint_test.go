package source

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAFingerprintSeesEveryChange(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "defs", "a.yaml"), filepath.Join(dir, "link")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "defs"), 0o755))
	must(os.Mkdir(filepath.Join(dir, "defs", ".git"), 0o755))
	must(os.WriteFile(file, []byte("one"), 0o600))
	must(os.Symlink(filepath.Join(dir, "defs"), link))
	then := time.Now().Add(-time.Hour)
	before := Fingerprint(link)
	if Fingerprint(link) != before {
		t.Fatal("nothing changed, and the fingerprint did")
	}
	for _, c := range []struct {
		name   string
		change func() error
		seen   bool
	}{
		{"other bytes of equal length, with the old time", func() error {
			return firstError(os.WriteFile(file, []byte("two"), 0o600), os.Chtimes(file, then, then))
		}, true},
		{"a new file", func() error { return os.WriteFile(filepath.Join(dir, "defs", "b.yaml"), nil, 0o600) }, true},
		{"a file gone", func() error { return os.Remove(filepath.Join(dir, "defs", "b.yaml")) }, true},
		{"a commit's own files", func() error { return os.WriteFile(filepath.Join(dir, "defs", ".git", "HEAD"), nil, 0o600) }, false},
		{"the folder gone", func() error { return os.RemoveAll(filepath.Join(dir, "defs")) }, true},
	} {
		must(c.change())
		after := Fingerprint(link)
		if (after != before) != c.seen {
			t.Errorf("%s: seen %v, want %v", c.name, after != before, c.seen)
		}
		before = after
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
