// Package golden runs the cases of a test that stand in txtar files, and compares files with what they are made from.
//
// It owns the loop, the comparison and the flag -update, which writes what came out into the files.
// What a case says, its callers know.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden parts of testdata anew")

// Cases runs each file that a pattern of filepath.Glob matches as a subtest of its name. run returns the golden
// parts, which are compared with those of the case that have their names.
func Cases(t *testing.T, pattern string, run func(t *testing.T, a *txtar.Archive) []txtar.File) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases match %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil || len(a.Files) == 0 {
				t.Fatalf("read case: %d parts, %v", len(a.Files), err)
			}
			parts := run(t, a)
			if len(parts) == 0 {
				t.Fatal("the case has no golden part")
			}
			got := set(a, parts)
			if diff := cmp.Diff(string(txtar.Format(a)), string(got)); diff == "" {
				return
			} else if !*update {
				t.Errorf("(-want +got):\n%s", diff)
			} else if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Error(err)
			}
		})
	}
}

// File compares a file with what a test says that it is, or writes it. An error ends with how to write it.
func File(t testing.TB, path, want, how string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s differs: %s (-file +want):\n%s", path, how, diff)
	}
}

// Part is a golden part of a case.
func Part(name, text string) txtar.File { return txtar.File{Name: name, Data: []byte(text)} }

// set is the case with the golden parts, of which those that it lacks come last.
func set(a *txtar.Archive, parts []txtar.File) []byte {
	out := txtar.Archive{Comment: a.Comment, Files: slices.Clone(a.Files)}
	for _, p := range parts {
		if i := slices.IndexFunc(out.Files, func(f txtar.File) bool { return f.Name == p.Name }); i >= 0 {
			out.Files[i] = p
		} else {
			out.Files = append(out.Files, p)
		}
	}
	return txtar.Format(&out)
}
