package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"

	"github.com/skep-dev/skep/image"
)

// TestWhatCountedIsHashedOnce changes a content after the collector took its digest: a layer is compared with that,
// so that what a manifest names costs no hash of any content.
func TestWhatCountedIsHashedOnce(t *testing.T) {
	content, subject := []byte("payload"), image.Sum([]byte("image"))
	annotations := map[string]string{"dev.cosignproject.cosign/signature": "s"}
	descriptor := v1.Descriptor{MediaType: ctypes.SimpleSigningMediaType, Digest: image.Sum(content), Size: int64(len(content)), Annotations: annotations}
	others := []v1.Descriptor{descriptor, descriptor, descriptor, descriptor}
	others[0].MediaType, others[1].Digest, others[2].Size, others[3].Annotations = ctypes.DssePayloadType, subject, 1, nil
	before := []Artifact{{Kind: LegacySignature, Content: content, Annotations: annotations}, {Kind: LegacySignature, Repository: "other"}}
	c := newCollector(nil, subject, "", before)
	copy(content, bytes.Repeat([]byte("x"), len(content)))
	raw, err := json.Marshal(v1.Manifest{Config: v1.Descriptor{Digest: subject}, Layers: append(others, descriptor)})
	if err != nil {
		t.Fatal(err)
	}
	c.read("tag", raw, false)
	for _, l := range c.layers {
		isCounted := l.kind == LegacySignature && l.digest == descriptor.Digest && l.size == descriptor.Size && l.annotations != nil
		if (l.behind < 0) != isCounted {
			t.Errorf("layer %+v", l)
		}
	}
	if len(c.layers) != 5 {
		t.Errorf("%d layers", len(c.layers))
	}
}

// TestReadingEndsBetweenManifests whose bytes are there already: no request notices that time is up.
func TestReadingEndsBetweenManifests(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	known := image.Sum([]byte("manifest"))
	c := newCollector(nil, known, "", nil)
	c.manifests[known] = true
	if err := c.readListed(ctx, []referrer{{digest: known}}); !errors.Is(err, context.Canceled) {
		t.Errorf("readListed: %v", err)
	}
}
