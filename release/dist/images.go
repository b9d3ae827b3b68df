package dist

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/release/attest"
	"github.com/skep-dev/skep/release/build"
)

// layouts is the folder of the images in a release: an OCI layout for each repository.
const layouts = "oci"

// refName is how a layout names an image.
const refName = "org.opencontainers.image.ref.name"

// digest is the artifact's.
func (a Artifact) digest() (v1.Hash, error) {
	if a.Index != nil {
		return a.Index.Digest()
	}
	return a.Image.Digest()
}

// digests are the artifact's, and those of the images of an index.
func (a Artifact) digests() ([]v1.Hash, error) {
	whole, err := a.digest()
	if err != nil || a.Index == nil {
		return []v1.Hash{whole}, err
	}
	manifest, err := a.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	all := []v1.Hash{whole}
	for _, d := range manifest.Manifests {
		all = append(all, d.Digest)
	}
	return all, nil
}

// makeImages makes an image of each binary, for all architectures.
func (r *release) makeImages(context.Context) error {
	authorities := build.MozillaAuthorities()
	r.inputs.addModules(r.Authorities)
	var all []Artifact
	for _, c := range build.Components() {
		a := Artifact{Repository: c.Command, Tag: r.Version, SBOMs: map[v1.Hash][]byte{}}
		var images []v1.Image
		for _, arch := range r.Architectures {
			one, err := build.Image(c, build.Content{Binaries: filepath.Join(r.bin, arch), Arch: arch, Authorities: authorities, Stamp: &r.stamp})
			if err != nil {
				return err
			}
			if err := r.addImageSBOM(&a, c, arch, one, authorities); err != nil {
				return err
			}
			images = append(images, one)
		}
		var err error
		if a.Index, err = build.Index(c, r.stamp, images); err != nil {
			return err
		}
		all = append(all, a)
	}
	return r.addArtifacts(all)
}

// addImageSBOM writes the bill of materials of an image for one architecture.
func (r *release) addImageSBOM(a *Artifact, c build.Component, arch string, of v1.Image, authorities []byte) error {
	digest, err := of.Digest()
	if err != nil {
		return err
	}
	binary, err := r.describe(c.Command, arch)
	if err != nil {
		return err
	}
	about := attest.Image{Binary: binary, Digest: digest.Hex}
	// Their modules are among those of the binary.
	for _, command := range c.Beside {
		sum, err := sumOf(filepath.Join(r.bin, arch, command))
		if err != nil {
			return err
		}
		about.Files = append(about.Files, attest.Subject{Name: command, SHA256: sum})
	}
	if c.Authorities {
		about.Files = append(about.Files, attest.Subject{Name: build.AuthoritiesFile, SHA256: image.Sum(authorities).Hex})
	}
	sbom, err := attest.ImageSBOM(about, r.Version, r.stamp.Time)
	if err != nil {
		return err
	}
	a.SBOMs[digest] = sbom
	return r.write(fileOf(c.Command, arch)+".image"+sbomEnding, sbom)
}

// addArtifacts writes artifacts as layouts.
func (r *release) addArtifacts(all []Artifact) error {
	for _, a := range all {
		to, err := layout.Write(r.layoutOf(a), empty.Index)
		if err != nil {
			return fmt.Errorf("write layout of %s: %w", a.Repository, err)
		}
		tag := layout.WithAnnotations(map[string]string{refName: a.Tag})
		if a.Index != nil {
			err = to.AppendIndex(a.Index, tag)
		} else {
			err = to.AppendImage(a.Image, tag)
		}
		if err != nil {
			return fmt.Errorf("write layout of %s: %w", a.Repository, err)
		}
	}
	r.artifacts = append(r.artifacts, all...)
	return nil
}

// layoutOf is the folder of an artifact while it is staged.
func (r *release) layoutOf(a Artifact) string {
	return filepath.Join(r.stage, layouts, filepath.FromSlash(a.Repository))
}
