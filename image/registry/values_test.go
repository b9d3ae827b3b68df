package registry

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// megabyte is a document of nearly a MiB: what is between head and tail is
// repeated.
func megabyte(head, repeated, tail string) []byte {
	return []byte(head + strings.Repeat(repeated, (mib-len(head)-len(tail))/len(repeated)) + tail)
}

// documents are a manifest and an index that list half a million things that are
// none, and what serves as either.
func documents() map[string][]byte {
	return map[string][]byte{
		"a manifest of numbers":     megabyte(`{"schemaVersion":2,"config":{},"layers":[`, "0,", "0]}"),
		"an index of numbers":       megabyte(`{"schemaVersion":2,"manifests":[`, "0,", "0]}"),
		"a manifest of annotations": megabyte(`{"schemaVersion":2,"config":{},"annotations":{`, `"a":"",`, `"b":""}}`),
		"a platform of features":    megabyte(`{"schemaVersion":2,"manifests":[{"platform":{"os.features":[`, `"",`, `""]}}]}`),
	}
}

func TestADocumentOfManyValuesIsNotDecoded(t *testing.T) {
	for name, data := range documents() {
		t.Run(name, func(t *testing.T) {
			b := &image.Built{Blobs: map[v1.Hash][]byte{}}
			b.Root = b.Add(types.OCIManifestSchema1, data)
			srv := images.Serve(t, fake(b))
			c := newTestClient(t, cachedIn(t.TempDir()), func(o *Options) { o.ManifestBytes = mib })
			r := image.Resolved{Registry: srv.Host, Repository: "bpf/many", Digest: b.Digest()}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.Pull(t.Context(), r)
			runtime.ReadMemStats(&after)
			refused(t, err, image.ErrMalformed, "values, more than the limit of 8192")
			// The text itself takes a few, and what it says took 437.
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 32*mib {
				t.Errorf("refusing it allocated %d MiB", grown/mib)
			}
			if _, err := image.ParseDocument(b.Root.Digest, data); err == nil {
				t.Error("it is decoded where it came another way")
			}

			// What stands under a tag is no reason to leave the rest unread either.
			attached, err := c.Attachments(r)
			if err != nil {
				t.Fatal(err)
			}
			_, err = attached.Tagged(t.Context(), "v1")
			refused(t, err, image.ErrMalformed, "values, more than the limit of 8192")
		})
	}
}

func TestManyReferrersAreNotDecoded(t *testing.T) {
	list := megabyte(`{"schemaVersion":2,"manifests":[`, "{},", "{}]}")
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	f := fake(b)
	f.first = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/referrers/") {
			return false
		}
		w.Header().Set("Content-Type", string(types.OCIImageIndex))
		_, _ = w.Write(list)
		return true
	}
	srv := images.Serve(t, f)
	c := newTestClient(t)
	attached, err := c.Attachments(image.Resolved{Registry: srv.Host, Repository: "bpf/many", Digest: b.Digest()})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = attached.Referrers(t.Context())
	refused(t, err, image.ErrUnavailable, "values, more than the limit of 16384")
}

func TestAConfigOfManyValuesIsNotDecoded(t *testing.T) {
	config := megabyte(`{"config":{"Labels":{`, `"a":"",`, `"b":""}}}`)
	b := handmade(types.OCILayer, nil, func(m *v1.Manifest) { m.Config.Digest, m.Config.Size = image.Sum(config), int64(len(config)) })
	b.Blobs[image.Sum(config)] = config
	srv := images.Serve(t, fake(b))
	_, err := newTestClient(t).Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/many", Digest: b.Digest()})
	refused(t, err, image.ErrMalformed, "values, more than the limit of 8192")
}

func TestWhatIsNoManifestIsRemembered(t *testing.T) {
	b := &image.Built{Blobs: map[v1.Hash][]byte{}}
	b.Root = b.Add(types.OCIManifestSchema1, []byte(`{"schemaVersion":2,"config":{},"layers":[0]}`))
	srv := images.Serve(t, fake(b))
	c := newTestClient(t)
	if err := c.knownMalformed(b.Digest()); err != nil {
		t.Fatal(err)
	}
	_, err := c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/none", Digest: b.Digest()})
	refused(t, err, image.ErrMalformed, "parse manifest")
	refused(t, c.knownMalformed(b.Digest()), image.ErrMalformed, "parse manifest")
	// Whoever may not read it is not told.
	srv.Config.Handler = http.NotFoundHandler()
	_, err = c.Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/none", Digest: b.Digest()})
	refused(t, err, image.ErrNotFound, "404")
}

func TestALongHeaderIsNotRead(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	f := fake(b)
	f.first = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("X-Long", strings.Repeat("a", 128<<10))
		}
		return false
	}
	srv := images.Serve(t, f)
	_, err := newTestClient(t).Pull(t.Context(), image.Resolved{Registry: srv.Host, Repository: "bpf/header", Digest: b.Digest()})
	refused(t, err, image.ErrUnavailable, "headers exceeded")
}
