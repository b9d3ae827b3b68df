package image

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Document is a manifest or an index: exactly one of the two is set.
type Document struct {
	Image     *v1.Manifest
	Index     *v1.IndexManifest
	MediaType types.MediaType
}

// ParseDocument tells a manifest from an index by its own words. A document
// that could pass for both is rejected: readers would disagree about what was
// signed (CVE-2021-41190).
func ParseDocument(digest v1.Hash, data []byte) (Document, error) {
	if err := CheckValues(digest, data); err != nil {
		return Document{}, Malformed("parse manifest %s: %w", digest, err)
	}
	var shape struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &shape); err != nil {
		return Document{}, Malformed("parse manifest %s: %w", digest, err)
	}
	if shape.SchemaVersion != 2 {
		return Document{}, Malformed("parse manifest %s: schemaVersion %d is not supported: push the image again as an OCI image or Docker schema 2",
			digest, shape.SchemaVersion)
	}
	isImage, isIndex := shape.Config != nil || shape.Layers != nil, shape.Manifests != nil
	if isImage == isIndex {
		return Document{}, Malformed("parse manifest %s: it must have either config and layers, or manifests, and not both", digest)
	}
	doc := Document{MediaType: shape.MediaType}
	var err error
	if isIndex {
		doc.MediaType = cmp.Or(doc.MediaType, types.OCIImageIndex)
		doc.Index = new(v1.IndexManifest)
		err = json.Unmarshal(data, doc.Index)
	} else {
		doc.MediaType = cmp.Or(doc.MediaType, types.OCIManifestSchema1)
		doc.Image = new(v1.Manifest)
		err = json.Unmarshal(data, doc.Image)
	}
	if err != nil {
		return Document{}, Malformed("parse manifest %s: %w", digest, err)
	}
	if isIndex != doc.MediaType.IsIndex() || isImage != doc.MediaType.IsImage() {
		return Document{}, Malformed("parse manifest %s: its media type %q does not fit its content", digest, shape.MediaType)
	}
	return doc, nil
}

// ChooseManifest picks the entry of an index for a platform: the first that fits, as
// the OCI image specification says, or the only one if it names no platform.
func ChooseManifest(digest v1.Hash, index *v1.IndexManifest, want v1.Platform, limit int) (v1.Descriptor, error) {
	if len(index.Manifests) > limit {
		return v1.Descriptor{}, Malformed("read index %s: its %d entries are more than the limit of %d", digest, len(index.Manifests), limit)
	}
	var available []string
	for _, d := range index.Manifests {
		switch {
		case d.Platform == nil && len(index.Manifests) == 1, d.Platform != nil && fits(*d.Platform, want):
			if !d.MediaType.IsImage() {
				return v1.Descriptor{}, Malformed("read index %s: entry %s has media type %q: only image manifests are followed, and no index within an index",
					digest, d.Digest, d.MediaType)
			}
			return d, nil
		case d.Platform != nil && d.Platform.OS != "unknown":
			available = append(available, d.Platform.String())
		}
	}
	slices.Sort(available)
	list := strings.Join(slices.Compact(available), ", ")
	if list == "" {
		list = "entries without a platform"
	}
	return v1.Descriptor{}, Malformed("read index %s: it has nothing for %s, only %s: build the image for that platform too", digest, want, list)
}

// fits compares what matters for bytecode: the system, the architecture, and
// the variant where one was asked for.
func fits(got, want v1.Platform) bool {
	return got.OS == want.OS && got.Architecture == want.Architecture && (want.Variant == "" || got.Variant == want.Variant)
}

// CheckSize holds a descriptor to a limit before anything is fetched.
func CheckSize(what string, d v1.Descriptor, limit int64) error {
	if d.Digest.Algorithm != "sha256" {
		return Malformed("read %s %s: only sha256 digests are accepted", what, d.Digest)
	}
	if d.Size < 0 {
		return Malformed("read %s %s: its size %d is negative", what, d.Digest, d.Size)
	}
	if d.Size > limit {
		return Malformed("read %s %s: its %d bytes are more than the limit of %d", what, d.Digest, d.Size, limit)
	}
	return nil
}

// OnlyLayer returns the one layer a bytecode image has.
func OnlyLayer(digest v1.Hash, m *v1.Manifest, limit int64) (v1.Descriptor, error) {
	if len(m.Layers) != 1 {
		return v1.Descriptor{}, Malformed("read manifest %s: it has %d layers, and a bytecode image has exactly one: build it FROM scratch with one COPY, "+
			"or with skep image build", digest, len(m.Layers))
	}
	layer := m.Layers[0]
	if !layer.MediaType.IsDistributable() || len(layer.URLs) != 0 {
		return v1.Descriptor{}, Malformed("read manifest %s: its layer lies outside the registry, and Skep fetches none from other addresses", digest)
	}
	return layer, CheckSize("layer", layer, limit)
}

// LabelsOf reads the labels out of an image's config.
func LabelsOf(d v1.Descriptor, data []byte) (map[string]string, error) {
	var config struct {
		Config struct {
			Labels map[string]string `json:"Labels"`
		} `json:"config"`
	}
	err := CheckValues(d.Digest, data)
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		return nil, Malformed("parse config %s: %w", d.Digest, err)
	}
	return config.Config.Labels, nil
}

// labelsLimit bounds an image's labels together, in bytes: policies see them all.
const labelsLimit = 64 << 10

// CheckLabels holds labels to the limit.
func CheckLabels(manifest v1.Hash, labels map[string]string) error {
	size := 0
	for name, value := range labels {
		size += len(name) + len(value)
	}
	if size > labelsLimit {
		return Malformed("read manifest %s: its labels have %d bytes together, more than the limit of %d: leave out what is for no reader",
			manifest, size, labelsLimit)
	}
	return nil
}
