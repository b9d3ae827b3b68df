package registry

import (
	"testing"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// BenchmarkPullCached is what every verdict pays for an image it has seen: four
// blobs read and hashed, one archive expanded.
func BenchmarkPullCached(b *testing.B) {
	c, err := NewClient(quick(cachedIn(b.TempDir())))
	if err != nil {
		b.Fatalf("NewClient: %v", err)
	}
	r, err := c.Push(b.Context(), "oci:"+b.TempDir()+"/layout:v1", images.MustBuild(b, images.LittleEndian, image.BuildOptions{}))
	if err != nil {
		b.Fatalf("Push: %v", err)
	}
	for b.Loop() {
		if _, err := c.Pull(b.Context(), r); err != nil {
			b.Fatalf("Pull: %v", err)
		}
	}
}
