package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// ArtifactType is the artifact type of an object packed as an OCI artifact.
	ArtifactType = "application/vnd.skep.bytecode.v1"
	// ObjectMediaType is the media type of such an artifact's only layer.
	ObjectMediaType = "application/vnd.skep.bytecode.v1+elf"

	defaultFilename = "bytecode.o"
	// defaultArchitecture is what the config of a single image says. Skep reads
	// single images whatever they say; other tools warn if it is missing.
	defaultArchitecture = "amd64"
)

// BuildOptions say how objects are packed.
type BuildOptions struct {
	// Labels go into the config of an image, or the annotations of an artifact.
	// bytecode.Labels makes the ones of bpfman's format from facts.
	Labels map[string]string
	// PlatformLabels add to Labels for one platform of an index.
	PlatformLabels map[string]map[string]string
	// Created is the time stamp in the image. Zero means 1970, so that equal
	// objects give equal digests.
	Created time.Time
	// Filename is the object's name in the layer. Empty means bytecode.o.
	Filename string
	// Artifact packs an OCI artifact whose layer is the object, in place of
	// bpfman's image format.
	Artifact bool
}

// Built is a packed image in memory, ready for Push. The same objects and
// options give the same digests.
type Built struct {
	Root  v1.Descriptor
	Blobs map[v1.Hash][]byte
}

// Digest is that of the manifest or index, as sha256:….
func (b *Built) Digest() string { return b.Root.Digest.String() }

// Manifest implements Source.
func (b *Built) Manifest(_ context.Context, digest v1.Hash) ([]byte, error) {
	data, ok := b.Blobs[digest]
	if !ok {
		return nil, NotFound("read %s: it is no part of the image", digest)
	}
	return data, nil
}

// Blob implements Source.
func (b *Built) Blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return b.Manifest(ctx, d.Digest)
}

// Add adds a blob and returns its descriptor.
func (b *Built) Add(mediaType types.MediaType, data []byte) v1.Descriptor {
	d := v1.Descriptor{MediaType: mediaType, Digest: Sum(data), Size: int64(len(data))}
	b.Blobs[d.Digest] = data
	return d
}

func (b *Built) addJSON(mediaType types.MediaType, value any) (v1.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return b.Add(mediaType, data), nil
}

// Build packs one object. It rejects what Pull would reject: anything but a
// relocatable ELF object for BPF.
func Build(object []byte, options BuildOptions) (*Built, error) {
	b := &Built{Blobs: map[v1.Hash][]byte{}}
	var err error
	b.Root, err = b.pack(object, v1.Platform{OS: "linux", Architecture: defaultArchitecture}, options)
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	return b, nil
}

// BuildIndex packs one object per platform, written as linux/arm64, with an
// index over them.
func BuildIndex(objects map[string][]byte, options BuildOptions) (*Built, error) {
	if len(objects) == 0 {
		return nil, Malformed("build index: it has no object: name at least one platform")
	}
	b := &Built{Blobs: map[v1.Hash][]byte{}}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, platform := range slices.Sorted(maps.Keys(objects)) {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, Malformed("build index: platform %q: %w", platform, err)
		}
		o := options
		o.Labels = maps.Clone(options.Labels)
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		maps.Copy(o.Labels, options.PlatformLabels[platform])
		d, err := b.pack(objects[platform], *p, o)
		if err != nil {
			return nil, fmt.Errorf("build image for %s: %w", platform, err)
		}
		d.Platform = p
		index.Manifests = append(index.Manifests, d)
	}
	var err error
	b.Root, err = b.addJSON(types.OCIImageIndex, index)
	return b, err
}

func (b *Built) pack(object []byte, p v1.Platform, o BuildOptions) (v1.Descriptor, error) {
	if err := checkELF(object); err != nil {
		return v1.Descriptor{}, Malformed("pack object: %w", err)
	}
	name := cmp.Or(o.Filename, defaultFilename)
	if name != path.Base(name) || name == ".." || name == "." || name == "/" {
		return v1.Descriptor{}, Malformed("pack object: file name %q must have no folder: the object lies at the layer's root", name)
	}
	created := o.Created.UTC().Truncate(time.Second)
	if o.Created.IsZero() {
		created = time.Unix(0, 0).UTC()
	}
	if o.Artifact {
		return b.packArtifact(object, name, created, o.Labels)
	}
	return b.packImage(object, name, created, p, o.Labels)
}

func (b *Built) packArtifact(object []byte, name string, created time.Time, labels map[string]string) (v1.Descriptor, error) {
	annotations := maps.Clone(labels)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[AnnotationCreated] = created.Format(time.RFC3339)
	layer := b.Add(ObjectMediaType, object)
	layer.Annotations = map[string]string{"org.opencontainers.image.title": name}
	d, err := b.addJSON(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  ArtifactType,
		Config:        b.Add(types.OCIEmptyJSON, []byte("{}")),
		Layers:        []v1.Descriptor{layer},
		Annotations:   annotations,
	})
	d.ArtifactType = ArtifactType
	return d, err
}

func (b *Built) packImage(object []byte, name string, created time.Time, p v1.Platform, labels map[string]string) (v1.Descriptor, error) {
	plain, packed, err := Archive([]File{{name, object}}, created)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("pack layer: %w", err)
	}
	stamp := v1.Time{Time: created}
	config, err := b.addJSON(types.OCIConfigJSON, v1.ConfigFile{
		Architecture: p.Architecture,
		Variant:      p.Variant,
		OS:           p.OS,
		Created:      stamp,
		Config:       v1.Config{Labels: labels},
		RootFS:       v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{Sum(plain)}},
		History:      []v1.History{{Created: stamp, CreatedBy: "skep image build", Comment: name}},
	})
	if err != nil {
		return v1.Descriptor{}, err
	}
	return b.addJSON(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        config,
		Layers:        []v1.Descriptor{b.Add(types.OCILayer, packed)},
	})
}
