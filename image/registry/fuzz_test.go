package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// FuzzLayer holds that no layer makes the reader panic, exceed its limit or
// return anything but one BPF object.
func FuzzLayer(f *testing.F) {
	const limit = mib
	seeds := refusedLayers(f)
	maps.Copy(seeds, bombs(f, 4*limit))
	for _, seed := range seeds {
		f.Add(seed.layer, false)
	}
	plain := archived(f, file{name: "./a.o", data: images.LittleEndian})
	f.Add(plain, false)
	f.Add(gzipped(f, plain), false)
	f.Add(images.LittleEndian, true)
	f.Add(images.BigEndian, true)
	f.Fuzz(func(t *testing.T, layer []byte, artifact bool) {
		d := v1.Descriptor{MediaType: types.OCILayer, Digest: image.Sum(layer), Size: int64(len(layer))}
		object, err := image.ObjectOf(d, layer, artifact, limit)
		if err != nil {
			if !errors.Is(err, image.ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			return
		}
		if int64(len(object)) > limit {
			t.Fatalf("the object has %d bytes", len(object))
		}
		if _, err := image.Build(object, image.BuildOptions{}); err != nil {
			t.Fatalf("the object is none: %v", err)
		}
		again, err := image.ObjectOf(d, layer, artifact, limit)
		if err != nil || !bytes.Equal(object, again) {
			t.Fatalf("the second reading differs: %v", err)
		}
	})
}

// memory is a source of what it holds.
type memory map[v1.Hash][]byte

func (m memory) Manifest(_ context.Context, digest v1.Hash) ([]byte, error) {
	data, ok := m[digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return data, nil
}

func (m memory) Blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return m.Manifest(ctx, d.Digest)
}

// FuzzManifest holds that no manifest or index makes the reader panic, and that
// what it follows is within the limits.
func FuzzManifest(f *testing.F) {
	good := images.MustBuild(f, images.LittleEndian, image.BuildOptions{})
	index, err := image.BuildIndex(map[string][]byte{"linux/amd64": images.LittleEndian, "linux/arm64": images.LittleEndian}, image.BuildOptions{})
	if err != nil {
		f.Fatalf("BuildIndex: %v", err)
	}
	for _, b := range []*image.Built{
		good, index, indexOver(index), images.MustBuild(f, images.LittleEndian, image.BuildOptions{Artifact: true}), handmade(types.DockerLayer, nil),
	} {
		f.Add(b.Blobs[b.Root.Digest])
	}
	f.Add([]byte(`{"schemaVersion":2,"config":null,"layers":null,"manifests":null}`))
	f.Add([]byte(strings.Repeat(`{"a":`, 1000)))
	c, err := NewClient(quick())
	if err != nil {
		f.Fatalf("NewClient: %v", err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		parts := memory{image.Sum(data): data}
		for _, b := range []*image.Built{good, index} {
			maps.Copy(parts, b.Blobs)
		}
		digest, m, err := c.descend(t.Context(), parts, image.Sum(data))
		if err != nil {
			if !errors.Is(err, image.ErrMalformed) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			return
		}
		var img Image
		if err := c.fill(t.Context(), parts, &img, digest, m); err != nil {
			return
		}
		if _, err := image.Build(img.Object, image.BuildOptions{}); err != nil || len(m.Layers) != 1 || m.Layers[0].Size > defaultLayerBytes {
			t.Fatalf("accepted %s", data)
		}
	})
}

// FuzzScrub holds that no query string survives, and that the result is short
// and printable.
func FuzzScrub(f *testing.F) {
	f.Add(`Get "https://a.example.com/x?sig=SECRET": EOF`)
	f.Add("failed to parse Location header \"http://a b?c=%zz\"")
	f.Add("//user:password@host/")
	f.Fuzz(func(t *testing.T, text string) {
		got := image.Scrub(text)
		if len(got) > 512+len("…") {
			t.Fatalf("%d bytes", len(got))
		}
		if strings.ContainsAny(got, "?\n\x1b") {
			t.Fatalf("scrubbed %q to %q", text, got)
		}
	})
}

// FuzzReference holds that references are parsed or rejected, and that whatever
// is parsed can be written again.
func FuzzReference(f *testing.F) {
	for _, seed := range []string{
		"a/b:c", "oci:dir:tag", "oci:@sha256:" + strings.Repeat("a", 64), "localhost:5000/x@sha256:" + strings.Repeat("a", 64), "oci::", "@", ":",
	} {
		f.Add(seed)
	}
	c, err := NewClient(quick())
	if err != nil {
		f.Fatalf("NewClient: %v", err)
	}
	f.Fuzz(func(t *testing.T, reference string) {
		r, err := c.Parse(reference)
		if err != nil {
			if !errors.Is(err, image.ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			return
		}
		if r.Repository == "" || r.Reference != reference {
			t.Fatalf("parsed %q to %+v", reference, r)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatalf("encode: %v", err)
		}
		if r.Registry != "" {
			if _, err := r.RepositoryName(); err != nil {
				t.Fatalf("the repository of %+v: %v", r, err)
			}
		}
	})
}
