// Package module finds the folder of this module's sources. It imports nothing of them, so
// that a test that needs the folder alone stays small.
package module

import (
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// path is what go.mod calls this module. Other modules stand in folders below it.
const path = "github.com/skep-dev/skep"

// Root is the folder of the module's sources: the working directory, which is a package's own in
// go test, or the nearest above it that has this module's go.mod. The binary itself does not know
// where it was built, so that all clones can share what was compiled. Root is empty where the
// working directory is in no clone; what is looked for there is not found then.
func Root() string {
	dir, err := os.Getwd()
	for err == nil {
		if body, failed := os.ReadFile(filepath.Join(dir, "go.mod")); failed == nil && modfile.ModulePath(body) == path {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return ""
}
