package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// TestAnImageIsDescribedWithoutItsObject has images pulled once: as long as every blob is
// there, nothing is read but what is remembered.
func TestAnImageIsDescribedWithoutItsObject(t *testing.T) {
	srv := images.Real(t)
	c := newTestClient(t)
	object := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	for name, b := range map[string]*image.Built{
		"an image":    object,
		"an index":    indexOver(object),
		"an artifact": images.MustBuild(t, images.LittleEndian, image.BuildOptions{Artifact: true}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			reader := newTestClient(t, cachedIn(dir))
			r := mustPush(t, c, srv.Host+"/bpf/described:v1", b)
			describe := func(whole bool) *Image {
				t.Helper()
				srv.Taken()
				img, err := reader.Describe(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				img.Release()
				if asked := srv.Taken(); whole != (len(asked) > 0) {
					t.Errorf("the registry was asked for %v", asked)
				}
				return img
			}
			first := describe(true)
			again := describe(false)
			if diff := cmp.Diff(first, again, cmpopts.IgnoreUnexported(Image{})); diff != "" {
				t.Errorf("described anew (-first +again):\n%s", diff)
			}
			if first.ObjectSize != int64(len(images.LittleEndian)) {
				t.Errorf("the object has %d bytes", first.ObjectSize)
			}
			blobs := images.Blobs(t, dir)
			if len(blobs) < 2 {
				t.Fatalf("the cache has %v", blobs)
			}
			for blob := range blobs {
				path := filepath.Join(dir, "blobs", "sha256", blob)
				for what, damage := range map[string]func() error{
					"is gone":   func() error { return os.Remove(path) },
					"is a link": func() error { return swap(path, func(p string) error { return os.Symlink("/etc/hostname", p) }) },
				} {
					if err := damage(); err != nil {
						t.Fatal(err)
					}
					img, err := reader.Describe(t.Context(), r)
					if err != nil {
						t.Fatalf("%s %s: %v", blob, what, err)
					}
					if len(img.Object) == 0 {
						t.Errorf("%s %s, and the image is not read again", blob, what)
					}
					img.Release()
				}
			}
			describe(false)
		})
	}
}

// TestWhatIsRememberedOfImagesIsBounded describes more than there is room for.
func TestWhatIsRememberedOfImagesIsBounded(t *testing.T) {
	d := newDescriptions()
	const many, each = 3 * maxDescribed / (4 << 10), 4 << 10
	for i := range many {
		d.Put(fmt.Sprint(i), described{image: Image{Labels: map[string]string{"l": strings.Repeat("x", each)}}})
		if held, bytes := d.Held(); bytes > maxDescribed || held*each > maxDescribed {
			t.Fatalf("after %d images, %d bytes of %d are remembered", i+1, bytes, held)
		}
	}
	if _, ok := d.Get(fmt.Sprint(many - 1)); !ok {
		t.Error("the last one is forgotten")
	}
	d.Put("large", described{image: Image{Labels: map[string]string{"l": strings.Repeat("x", maxDescription)}}})
	if _, ok := d.Get("large"); ok {
		t.Error("one with large labels is remembered")
	}
}
