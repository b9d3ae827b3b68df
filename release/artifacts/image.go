package artifacts

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blob is a part of an artifact.
type blob struct {
	mediaType types.MediaType
	data      []byte
	// title is the name of the file as which oras pull writes it; empty for none.
	title string
}

// descriptor is the blob's in a manifest.
func (b blob) descriptor() (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(b.data))
	d := v1.Descriptor{MediaType: b.mediaType, Digest: digest, Size: size}
	if b.title != "" {
		d.Annotations = map[string]string{annotationTitle: b.title}
	}
	return d, err
}

// stored is an image whose manifest is written already.
type stored struct {
	manifest []byte
	config   []byte
	layers   map[v1.Hash]blob
}

// RawManifest implements partial.CompressedImageCore.
func (s stored) RawManifest() ([]byte, error) { return s.manifest, nil }

// RawConfigFile implements partial.CompressedImageCore.
func (s stored) RawConfigFile() ([]byte, error) { return s.config, nil }

// MediaType implements partial.CompressedImageCore.
func (stored) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (s stored) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	layer, ok := s.layers[digest]
	if !ok {
		return nil, fmt.Errorf("read layer %s: it is no part of the artifact", digest)
	}
	return static.NewLayer(layer.data, layer.mediaType), nil
}

// assemble makes an artifact of one layer.
func assemble(config, layer blob, annotations map[string]string) (v1.Image, error) {
	configured, err := config.descriptor()
	if err != nil {
		return nil, err
	}
	layered, err := layer.descriptor()
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: configured, Layers: []v1.Descriptor{layered}, Annotations: annotations,
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(stored{manifest: manifest, config: config.data, layers: map[v1.Hash]blob{layered.Digest: layer}})
}

// layerConfig is the config of an artifact whose layer is an archive: it names what the
// archive comes to without compression.
func layerConfig(mediaType types.MediaType, plain []byte) (blob, error) {
	digest, _, err := v1.SHA256(bytes.NewReader(plain))
	if err != nil {
		return blob{}, err
	}
	config, err := json.Marshal(v1.ConfigFile{RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{digest}}})
	return blob{mediaType: mediaType, data: config}, err
}
