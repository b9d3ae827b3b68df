package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
)

// anonymous keeps the credentials of whoever runs the tests out of them.
type anonymous struct{}

func (anonymous) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

// quick are options under which a test that goes wrong ends soon.
func quick(change ...func(*Options)) Options {
	o := Options{
		Keychain: anonymous{}, Timeout: 20 * time.Second, Silence: 10 * time.Second, Backoff: time.Millisecond,
		Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func newTestClient(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	c, err := NewClient(quick(change...))
	if err != nil {
		t.Fatalf("NewClient: %v", err)
	}
	return c
}

// cachedIn makes a client keep a cache in a folder.
func cachedIn(dir string) func(*Options) { return func(o *Options) { o.CacheDir = dir } }

// fakeRegistry answers with what it is given, however wrong: path of a manifest
// or blob, by its last part, to content. first may answer in its place.
type fakeRegistry struct {
	content map[string][]byte
	types   map[string]types.MediaType
	first   func(w http.ResponseWriter, r *http.Request) bool
}

// fake serves a built image under the tag v1.
func fake(b *image.Built) *fakeRegistry {
	f := &fakeRegistry{content: map[string][]byte{"v1": b.Blobs[b.Root.Digest]}, types: map[string]types.MediaType{"v1": b.Root.MediaType}}
	for digest, data := range b.Blobs {
		f.content[digest.String()] = data
		var m struct {
			MediaType types.MediaType `json:"mediaType"`
		}
		if json.Unmarshal(data, &m) == nil {
			f.types[digest.String()] = m.MediaType
		}
	}
	return f
}

// ServeHTTP implements http.Handler.
func (f *fakeRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.first != nil && f.first(w, r) {
		return
	}
	if r.URL.Path == "/v2/" {
		return
	}
	key := filepath.Base(r.URL.Path)
	data, ok := f.content[key]
	if !ok {
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if mt := f.types[key]; mt != "" {
		w.Header().Set("Content-Type", string(mt))
	}
	w.Header().Set("Docker-Content-Digest", image.Sum(data).String())
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}

func mustPush(t *testing.T, c *Client, reference string, b *image.Built) image.Resolved {
	t.Helper()
	r, err := c.Push(t.Context(), reference, b)
	if err != nil {
		t.Fatalf("Push %s: %v", reference, err)
	}
	return r
}

func mustPull(t *testing.T, c *Client, r image.Resolved) *Image {
	t.Helper()
	img, err := c.Pull(t.Context(), r)
	if err != nil {
		t.Fatalf("Pull %s: %v", r.Reference, err)
	}
	return img
}

// handmade is an image around one layer that Build would not make.
func handmade(mediaType types.MediaType, layer []byte, change ...func(*v1.Manifest)) *image.Built {
	b := &image.Built{Blobs: map[v1.Hash][]byte{}}
	m := v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        b.Add(types.OCIConfigJSON, []byte(`{"config":{"Labels":{"a":"b"}}}`)),
		Layers:        []v1.Descriptor{b.Add(mediaType, layer)},
	}
	for _, c := range change {
		c(&m)
	}
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	b.Root = b.Add(types.OCIManifestSchema1, data)
	return b
}

// indexOver is an index of images for platforms, in the order given.
func indexOver(parts ...*image.Built) *image.Built {
	b := &image.Built{Blobs: map[v1.Hash][]byte{}}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, part := range parts {
		maps.Copy(b.Blobs, part.Blobs)
		index.Manifests = append(index.Manifests, part.Root)
	}
	data, err := json.Marshal(index)
	if err != nil {
		panic(err)
	}
	b.Root = b.Add(types.OCIImageIndex, data)
	return b
}

// file is one entry of an archive.
type file struct {
	name string
	data []byte
	kind byte
	pax  map[string]string
}

func archived(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: 0o644, Typeflag: f.kind, PAXRecords: f.pax}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if f.kind == tar.TypeSymlink || f.kind == tar.TypeLink {
			h.Linkname = "/etc/passwd"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("write header of %s: %v", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatalf("write %s: %v", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("close archive: %v", err)
	}
	return out.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatalf("gzip: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatalf("gzip: %v", err)
	}
	return out.Bytes()
}
