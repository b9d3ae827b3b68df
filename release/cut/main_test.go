package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/skep-dev/skep/release/artifacts"
)

// TestTheRepositoryCanBeCut cuts a copy of the repository's own files.
func TestTheRepositoryCanBeCut(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{artifacts.ChangelogFile, artifacts.ChartFile} {
		content, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const version = "v0.99.0"
	if err := artifacts.CheckCut(os.DirFS(root), version); err == nil {
		t.Error("a version that was not cut can be released")
	}
	if err := run(root, version, time.Unix(1_800_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	if err := artifacts.CheckCut(os.DirFS(root), version); err != nil {
		t.Error(err)
	}
}
