package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// open opens a cache in a folder.
func open(t *testing.T, dir string) *Cache {
	t.Helper()
	c, err := OpenCache(CacheOptions{Dir: dir, ManifestBytes: 4 << 20})
	if err != nil {
		t.Fatalf("OpenCache: %v", err)
	}
	return c
}

func TestABlobThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	// A full folder in a blob's place makes the last step, the rename, fail.
	if err := os.MkdirAll(c.path(image.Sum(images.LittleEndian))+"/full", 0o700); err != nil {
		t.Fatalf("mkdir: %v", err)
	}
	if err := c.Put(image.Sum(images.LittleEndian), images.LittleEndian); !errors.Is(err, image.ErrCache) {
		t.Errorf("put: %v, want ErrCache", err)
	}
	if left := images.Blobs(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := c.Get(image.Sum(images.LittleEndian), 1<<20); !errors.Is(err, image.ErrCache) {
		t.Errorf("get: %v, want ErrCache", err)
	}
}

func TestWhatCannotBeReadLeadsOnToAnything(t *testing.T) {
	c := open(t, t.TempDir())
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	for digest, data := range b.Blobs {
		if err := c.Put(digest, data); err != nil {
			t.Fatal(err)
		}
	}
	blobs, err := c.list(0)
	if err != nil {
		t.Fatal(err)
	}
	images.WithoutFiles(t, func() {
		if kept, err := c.kept(blobs, func(digest string) bool { return digest == b.Digest() }); !errors.Is(err, image.ErrCache) {
			t.Errorf("what is kept with too many open files: %v, %v; want ErrCache", kept, err)
		}
	})
	if kept, err := c.kept(blobs, func(digest string) bool { return digest == b.Digest() }); err != nil || len(kept) != 3 {
		t.Errorf("what is kept: %v, %v; want manifest, config and layer", kept, err)
	}
}

func TestPruneDropsTheLeastRecentlyUsedFirst(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	var digests []v1.Hash
	for i := range 4 {
		data := bytes.Repeat([]byte{byte(i)}, 1000)
		digests = append(digests, image.Sum(data))
		if err := c.Put(image.Sum(data), data); err != nil {
			t.Fatalf("put: %v", err)
		}
		used := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(c.path(image.Sum(data)), used, used); err != nil {
			t.Fatalf("chtimes: %v", err)
		}
	}
	// Reading the oldest makes it the youngest.
	if _, err := c.Get(digests[0], 1<<20); err != nil {
		t.Fatalf("get: %v", err)
	}
	if _, err := c.Prune(t.Context(), PruneOptions{MaxBytes: 2000}); err != nil {
		t.Fatalf("Prune: %v", err)
	}
	want := map[string]int64{digests[0].Hex: 1000, digests[3].Hex: 1000}
	if diff := cmp.Diff(want, images.Blobs(t, dir)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func TestPruneClearsUpAfterKilledProcesses(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	old, young := filepath.Join(c.dir, ".new-1"), filepath.Join(c.dir, ".new-2")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatalf("write: %v", err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, hour, hour); err != nil {
		t.Fatalf("chtimes: %v", err)
	}
	if _, err := c.Prune(t.Context(), PruneOptions{}); err != nil {
		t.Fatalf("Prune: %v", err)
	}
	if diff := cmp.Diff(map[string]int64{filepath.Base(young): 4}, images.Blobs(t, dir)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func TestPruneEndsWithItsContext(t *testing.T) {
	c := open(t, t.TempDir())
	if err := c.Put(image.Sum(images.LittleEndian), images.LittleEndian); err != nil {
		t.Fatalf("put: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Prune(ctx, PruneOptions{MinAge: time.Nanosecond}); !errors.Is(err, context.Canceled) {
		t.Errorf("Prune: %v, want context.Canceled", err)
	}
}
