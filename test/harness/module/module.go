// Package module finds the folder of this module's sources. It imports nothing of them, so
// that a test that needs the folder alone stays small.
package module

import (
	"path/filepath"
	"runtime"
)

// Root is the folder of the module's sources.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}
