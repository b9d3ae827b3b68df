package module

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRootIsTheNearestFolderOfThisModule(t *testing.T) {
	here, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if got := Root(); got != here {
		t.Errorf("of this package it is %q, and not %q", got, here)
	}
	outside := t.TempDir()
	other := filepath.Join(outside, "other")
	below := filepath.Join(other, "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, name := range map[string]string{outside: path, other: path + "/other"} {
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(below)
	if got := Root(); got != outside {
		t.Errorf("below another module it is %q, and not %q", got, outside)
	}
	t.Chdir("/")
	if got := Root(); got != "" {
		t.Errorf("in no clone it is %q", got)
	}
}
