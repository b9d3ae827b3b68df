// Package library checks the texts of other modules that Skep matches, because those modules
// have no type for them. It matches none itself.
package library

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/skep-dev/skep/test/harness/module"
)

// Says fails unless said, which the module with the path really said, has the text that Skep matches. The
// failure names the module's version.
func Says(t testing.TB, path, said, text string) {
	t.Helper()
	if !strings.Contains(said, text) {
		t.Errorf("%s %s says %q, and not %q: correct the text where Skep matches it", path, version(t, path), said, text)
	}
}

// version is that of a module in go.mod.
func version(t testing.TB, path string) string {
	t.Helper()
	name := filepath.Join(module.Root(), "go.mod")
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse(name, body, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		if r.Mod.Path == path {
			return r.Mod.Version
		}
	}
	t.Fatalf("go.mod requires no %s", path)
	return ""
}
