package artifacts

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/release/build"
)

// Policies makes the OPA bundles of a release, as v0.2.0, in the form that OPA downloads
// from registries: policies/baseline, policies/restricted, and policies/library for the
// functions that policies import. The profiles share a package, so each has a bundle of
// its own. A bundle's revision is the version.
func Policies(version string) ([]Artifact, error) {
	if err := build.CheckVersion(version); err != nil {
		return nil, err
	}
	var all []Artifact
	for _, name := range policies.Bundles() {
		a, err := bundleOf(name, version)
		if err != nil {
			return nil, fmt.Errorf("make policies/%s: %w", name, err)
		}
		all = append(all, a)
	}
	return all, nil
}

func bundleOf(name, version string) (Artifact, error) {
	packed, err := policies.Bundle(name, version)
	if err != nil {
		return Artifact{}, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return Artifact{}, err
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return Artifact{}, err
	}
	config, err := layerConfig(types.OCIConfigJSON, plain)
	if err != nil {
		return Artifact{}, err
	}
	made, err := assemble(config, blob{types.OCILayer, packed, "bundle.tar.gz"}, map[string]string{
		annotationTitle: name, annotationVersion: version, image.AnnotationSource: build.Source,
	})
	return Artifact{Repository: "policies/" + name, Tag: version, Image: made}, err
}
