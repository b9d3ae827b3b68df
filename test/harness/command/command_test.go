package command

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestABinaryIsLinkedOnce(t *testing.T) {
	const name = "./test/e2e/pause"
	// Nobody linked it with this yet, which sets what the program does not have.
	flags := "-X main.unused=" + strconv.FormatInt(time.Now().UnixNano(), 36)
	first, err := find(t.Context(), []string{"-ldflags", flags, name})
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := find(t.Context(), []string{"-ldflags", flags, name})
	if err != nil || second != first {
		t.Fatalf("it is %s, and %s later: %v", first, second, err)
	}
	if after, err := os.Stat(second); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("%s is another file: %v", second, err)
	}
	dir := t.TempDir()
	if err := Place(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}
	if placed, err := os.Stat(filepath.Join(dir, "pause")); err != nil || placed.Mode().Perm()&0o111 == 0 || os.SameFile(before, placed) {
		t.Errorf("what is placed is no program of its own: %v, %v", placed, err)
	}
}
