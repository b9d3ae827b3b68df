package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/release/dist"
)

// notesFile is what the release notes are called in a release.
const notesFile = "release-notes.md"

// more makes what is released beside binaries and images: the chart and the kustomize
// directory, which name the images by digest, the CUE module, the policy library, and the
// release notes.
func more(ctx context.Context, made dist.Made) ([]dist.Artifact, []dist.File, error) {
	images := map[string]name.Digest{}
	for component, digest := range made.Images {
		ref, err := name.NewDigest(made.Folder + "/" + digest)
		if err != nil {
			return nil, nil, fmt.Errorf("name image of %s: %w", component, err)
		}
		images[component] = ref
	}
	all, err := artifacts.Policies(made.Version)
	if err != nil {
		return nil, nil, err
	}
	for _, pack := range []func() (artifacts.Artifact, error){
		func() (artifacts.Artifact, error) { return artifacts.Module(ctx, made.Version) },
		func() (artifacts.Artifact, error) { return artifacts.Chart(optionsOf(made, images, "charts/skep")) },
		func() (artifacts.Artifact, error) {
			return artifacts.Kustomize(optionsOf(made, images, "deploy/kustomize"))
		},
	} {
		one, err := pack()
		if err != nil {
			return nil, nil, err
		}
		all = append(all, one)
	}
	var named []dist.Artifact
	for _, a := range all {
		named = append(named, dist.Artifact{Repository: a.Repository, Tag: a.Tag, Image: a.Image})
	}
	changelog, err := os.ReadFile(filepath.Join(made.Source, artifacts.ChangelogFile))
	if err != nil {
		return nil, nil, err
	}
	notes, err := artifacts.Notes(changelog, made.Version)
	return named, []dist.File{{Name: notesFile, Content: notes}}, err
}

// optionsOf are those of an artifact of a folder of the repository.
func optionsOf(made dist.Made, images map[string]name.Digest, folder string) artifacts.Options {
	return artifacts.Options{
		Files: os.DirFS(filepath.Join(made.Source, folder)), Version: made.Version, Images: images, Created: made.Time,
	}
}
