package artifacts

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"

	"github.com/skep-dev/skep/schemas"
)

// Module makes the CUE module of a release, as v0.2.0, in the form of CUE's registries. Its
// tag is the module's own version: see schemas.ModuleVersion. With
// CUE_REGISTRY=skep.dev=REGISTRY/FOLDER, CUE finds it below that folder.
func Module(ctx context.Context, version string) (Artifact, error) {
	published, err := schemas.Publish(ctx, version)
	if err != nil {
		return Artifact{}, err
	}
	image, err := imageOf(published)
	if err != nil {
		return Artifact{}, fmt.Errorf("make artifact of the CUE module: %w", err)
	}
	return Artifact{Repository: published.Repository, Tag: published.Version, Image: image}, nil
}

// imageOf is what CUE has written, as an image.
func imageOf(p schemas.Published) (v1.Image, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(p.Manifest, &manifest); err != nil {
		return nil, err
	}
	layers := map[v1.Hash]blob{}
	for _, d := range manifest.Layers {
		layers[d.Digest] = blob{mediaType: d.MediaType, data: p.Blobs[d.Digest.String()]}
	}
	return partial.CompressedToImage(stored{manifest: p.Manifest, config: p.Blobs[manifest.Config.Digest.String()], layers: layers})
}
