package image_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
)

func TestTheSameManifestsAndOriginGiveTheSameDigest(t *testing.T) {
	at := time.Date(2026, 1, 2, 4, 4, 5, 6, time.FixedZone("CET", 3600))
	digest := func(file, manifests string, from image.Origin) string {
		b, err := image.BuildManifests(file, []byte(manifests), from)
		if err != nil {
			t.Fatal(err)
		}
		return b.Digest()
	}
	from := image.Origin{Source: "https://git.example.com/bpf.git", Revision: "main@sha1:0", Created: at}
	first := digest("a.yaml", "a: 1\n", from)
	elsewhere := from
	elsewhere.Created = at.UTC().Truncate(time.Second)
	if again := digest("a.yaml", "a: 1\n", elsewhere); again != first {
		t.Errorf("digest %s, in another time zone %s", first, again)
	}
	for what, other := range map[string]string{
		"file":      digest("b.yaml", "a: 1\n", from),
		"manifests": digest("a.yaml", "a: 2\n", from),
		"source":    digest("a.yaml", "a: 1\n", image.Origin{Revision: from.Revision, Created: at}),
		"revision":  digest("a.yaml", "a: 1\n", image.Origin{Source: from.Source, Created: at}),
		"time":      digest("a.yaml", "a: 1\n", image.Origin{Source: from.Source, Revision: from.Revision, Created: at.Add(time.Second)}),
	} {
		if other == first {
			t.Errorf("another %s makes no difference", what)
		}
	}
}

func TestAnArtifactOfManifestsIsAnnotatedAsFluxDoes(t *testing.T) {
	b, err := image.BuildManifests("a.yaml", []byte("a: 1\n"), image.Origin{Source: "s", Revision: "r", Created: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Manifest(t.Context(), b.Root.Digest)
	if err != nil {
		t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"org.opencontainers.image.created": "1970-01-01T00:00:00Z", "org.opencontainers.image.source": "s", "org.opencontainers.image.revision": "r",
	}
	if diff := cmp.Diff(want, m.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}
