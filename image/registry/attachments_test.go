package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// TestAttachments writes a referrer and a tag beside an image and reads them
// back, wherever an image can be.
func TestAttachments(t *testing.T) {
	places := map[string]string{
		"a registry with the referrers API": images.Real(t, registry.WithReferrersSupport(true)).Host + "/bpf/x:v1",
		"a registry without it":             images.Real(t).Host + "/bpf/x:v1",
		"a layout":                          "oci:" + t.TempDir() + "/layout:v1",
	}
	for name, reference := range places {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t)
			r := mustPush(t, c, reference, images.MustBuild(t, images.LittleEndian, image.BuildOptions{}))
			a, err := c.Attachments(r)
			if err != nil {
				t.Fatalf("Attachments: %v", err)
			}
			if found, more, err := a.Referrers(t.Context()); err != nil || len(found) != 0 || more {
				t.Errorf("Referrers before there are any: %v, %v", found, err)
			}
			tag := strings.Replace(r.Digest, ":", "-", 1) + ".sig"
			if _, err := a.Tagged(t.Context(), tag); !errors.Is(err, image.ErrNotFound) {
				t.Errorf("Tagged before there is one: %v, want ErrNotFound", err)
			}
			signature := handmade("application/vnd.dev.cosign.simplesigning.v1+json", []byte("payload"))
			write(t, a, signature, tag)
			bundle := handmade("application/vnd.dev.sigstore.bundle.v0.3+json", []byte("bundle"), func(m *v1.Manifest) {
				m.Subject = &v1.Descriptor{MediaType: m.MediaType, Digest: sumOf(t, r.Digest), Size: 1}
			})
			write(t, a, bundle, "")
			readBack(t, a, signature, bundle, tag)
			if again, err := c.Resolve(t.Context(), reference); err != nil || again.Digest != r.Digest {
				t.Errorf("the image resolves to %s afterwards, %v", again.Digest, err)
			}
		})
	}
}

func write(t *testing.T, a *Attachments, b *image.Built, tag string) {
	t.Helper()
	for digest, data := range b.Blobs {
		if digest == b.Root.Digest {
			continue
		}
		if err := a.PutBlob(t.Context(), v1.Descriptor{Digest: digest, Size: int64(len(data))}, data); err != nil {
			t.Fatalf("PutBlob: %v", err)
		}
	}
	if err := a.PutManifest(t.Context(), b.Root, b.Blobs[b.Root.Digest], tag); err != nil {
		t.Fatalf("PutManifest: %v", err)
	}
}

func readBack(t *testing.T, a *Attachments, signature, bundle *image.Built, tag string) {
	t.Helper()
	data, err := a.Tagged(t.Context(), tag)
	if err != nil || image.Sum(data) != signature.Root.Digest {
		t.Errorf("Tagged: %s, %v", image.Sum(data), err)
	}
	found, _, err := a.Referrers(t.Context())
	if err != nil || len(found) != 1 || found[0].Digest != bundle.Root.Digest {
		t.Fatalf("Referrers: %v, %v", found, err)
	}
	if data, err = a.Manifest(t.Context(), found[0].Digest); err != nil {
		t.Fatalf("Manifest: %v", err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("parse manifest: %v", err)
	}
	if data, err = a.Blob(t.Context(), m.Layers[0]); err != nil || string(data) != "bundle" {
		t.Errorf("Blob: %q, %v", data, err)
	}
	wrong := m.Layers[0]
	for _, size := range []int64{-1, 0, 5, 7, 1<<63 - 1} {
		wrong.Size = size
		if _, err := a.Blob(t.Context(), wrong); !errors.Is(err, image.ErrUnavailable) {
			t.Errorf("Blob of size %d: %v, want ErrUnavailable", size, err)
		}
	}
}

func TestAttachmentsOfNothing(t *testing.T) {
	c := newTestClient(t)
	for name, r := range map[string]image.Resolved{
		"an unresolved reference": {Registry: "example.com", Repository: "x"},
		"a bad repository":        {Registry: "example.com", Repository: "X", Digest: image.Sum(nil).String()},
	} {
		if _, err := c.Attachments(r); !errors.Is(err, image.ErrMalformed) {
			t.Errorf("Attachments of %s: %v, want ErrMalformed", name, err)
		}
		if _, err := c.Pull(t.Context(), r); !errors.Is(err, image.ErrMalformed) {
			t.Errorf("Pull of %s: %v, want ErrMalformed", name, err)
		}
	}
}

func TestManyWritersOfOneLayout(t *testing.T) {
	dir := t.TempDir() + "/layout"
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	var group sync.WaitGroup
	want := map[string]bool{}
	for i := range 12 {
		tag := fmt.Sprintf("v%d", i)
		want[tag] = true
		c := newTestClient(t)
		group.Go(func() {
			if _, err := c.Push(t.Context(), "oci:"+dir+":"+tag, b); err != nil {
				t.Errorf("Push: %v", err)
			}
		})
	}
	group.Wait()
	data, err := os.ReadFile(dir + "/index.json")
	if err != nil {
		t.Fatal(err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatalf("index: %v", err)
	}
	got := map[string]bool{}
	for _, d := range index.Manifests {
		got[d.Annotations["org.opencontainers.image.ref.name"]] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
}
