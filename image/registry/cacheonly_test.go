package registry

import (
	"bytes"
	"errors"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

func TestUnderCacheOnlyNoRegistryIsAsked(t *testing.T) {
	built := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	s := images.Serve(t, fake(built))
	c := newTestClient(t, cachedIn(t.TempDir()))
	reference := s.Host + "/a:v1"
	resolved, err := c.Resolve(t.Context(), reference)
	if err != nil {
		t.Fatal(err)
	}
	s.Taken()
	ctx := CacheOnly(t.Context())
	if _, err := c.Resolve(ctx, reference); !errors.Is(err, image.ErrNotAsked) {
		t.Errorf("a tag is resolved: %v", err)
	}
	if _, err := c.Pull(ctx, resolved); !errors.Is(err, image.ErrNotAsked) {
		t.Errorf("an image that is not in the cache is pulled: %v", err)
	}
	attached, err := c.Attachments(resolved)
	if err != nil {
		t.Fatal(err)
	}
	_, _, referrers := attached.Referrers(ctx)
	_, tagged := attached.Tagged(ctx, "sha256-a.sig")
	_, blob := attached.Blob(ctx, v1.Descriptor{Digest: built.Root.Digest, Size: 1})
	for name, err := range map[string]error{"referrers": referrers, "a tag": tagged, "a blob": blob} {
		if !errors.Is(err, image.ErrNotAsked) {
			t.Errorf("%s: %v, want ErrNotAsked", name, err)
		}
	}
	if asked := s.Taken(); len(asked) > 0 {
		t.Errorf("the registry was asked: %v", asked)
	}
	if _, err := c.Pull(t.Context(), resolved); err != nil {
		t.Fatal(err)
	}
	s.Taken()
	pulled, err := c.Pull(ctx, resolved)
	if err != nil || !bytes.Equal(pulled.Object, images.LittleEndian) || len(s.Taken()) > 0 {
		t.Errorf("what is in the cache: %v, %d requests", err, len(s.Taken()))
	}
}

func TestTheRegistryOfAReference(t *testing.T) {
	for reference, want := range map[string]string{
		"ghcr.io/a/b:v1": "ghcr.io", "127.0.0.1:5000/a": "127.0.0.1:5000", "a/b": "index.docker.io", "oci:/tmp/a": "", "A B": "",
	} {
		if got := image.RegistryOf(reference); got != want {
			t.Errorf("RegistryOf(%q) = %q, want %q", reference, got, want)
		}
	}
}
