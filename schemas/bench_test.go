package schemas_test

import (
	"testing"

	"github.com/skep-dev/skep/schemas"
)

// BenchmarkLoad is what a pass pays for a source that changed: mostly the start
// of the renderer.
func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	write(b, dir+"/good.yaml", good)
	for b.Loop() {
		if _, err := schemas.Load(b.Context(), schemas.Options{Root: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
