package access

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/images"
)

func TestWhatATenantReadsCountsAmongTheOpenObjects(t *testing.T) {
	srv := images.Real(t)
	c := newClient(t, cachedAt(t.TempDir()), func(o *registry.Options) { o.Objects = 2 })
	r, err := c.Push(t.Context(), srv.Host+"/bpf/one:v1", images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	shared := NewShared(c, SharedOptions{})
	reader := shared.Reader("team-a", nil)
	var open []*registry.Image
	for range 2 {
		one, err := c.Pull(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, one)
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := reader.Pull(soon, r); !errors.Is(err, image.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third object: %v, want ErrUnavailable and the context's end", err)
	}
	for _, one := range open {
		one.Release()
	}
	if _, ok := shared.Remember(t.Context(), r, 1<<20); ok {
		t.Error("an image is remembered that no tenant pulled")
	}
	for range 4 {
		pulled, err := reader.Pull(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		pulled.Release()
		if _, ok := shared.Remember(t.Context(), r, 1<<20); !ok {
			t.Error("what a tenant pulled is not remembered")
		}
	}
}
