package main

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for name, out := range outputs() {
		want, err := os.ReadFile(out.path)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := run(&got, []string{name}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s: run go generate ./schemas (-file +table):\n%s", name, diff)
		}
	}
}

func TestOnlyAKnownOutputIsWritten(t *testing.T) {
	for _, args := range [][]string{nil, {"toml"}, {"cue", "page"}} {
		var got bytes.Buffer
		if err := run(&got, args); err == nil || got.Len() > 0 {
			t.Errorf("%q: %v, %q", args, err, got.String())
		}
	}
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrorKeepsItsCause(t *testing.T) {
	for name := range outputs() {
		if err := run(full{}, []string{name}); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
