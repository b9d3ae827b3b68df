package artifacts

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/release/build"
)

// Kustomize makes the kustomize directory in the form of Flux's artifacts, kustomize/skep: a
// Flux Kustomization applies it, and oras pull writes kustomize.tar.gz.
func Kustomize(o Options) (Artifact, error) {
	a, err := kustomizeOf(o)
	if err != nil {
		return Artifact{}, fmt.Errorf("make kustomize directory: %w", err)
	}
	return a, nil
}

func kustomizeOf(o Options) (Artifact, error) {
	if err := build.CheckVersion(o.Version); err != nil {
		return Artifact{}, err
	}
	var files []image.File
	used := map[string]bool{}
	err := fs.WalkDir(o.Files, ".", func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(o.Files, p)
		if err == nil && len(o.Images) > 0 {
			content, err = byDigest(content, o.Images, used)
		}
		files = append(files, image.File{Name: p, Content: content})
		return err
	})
	if err != nil {
		return Artifact{}, err
	}
	for _, component := range slices.Sorted(maps.Keys(o.Images)) {
		if !used[component] {
			return Artifact{}, fmt.Errorf("no object has an image of %s", component)
		}
	}
	plain, packed, err := image.Archive(files, o.Created.UTC())
	if err != nil {
		return Artifact{}, err
	}
	config, err := layerConfig(image.FluxConfigMediaType, plain)
	if err != nil {
		return Artifact{}, err
	}
	annotations := map[string]string{image.AnnotationSource: build.Source, image.AnnotationRevision: o.Version, annotationVersion: o.Version}
	if !o.Created.IsZero() {
		annotations[image.AnnotationCreated] = o.Created.UTC().Format(time.RFC3339)
	}
	made, err := assemble(config, blob{image.FluxContentMediaType, packed, "kustomize.tar.gz"}, annotations)
	return Artifact{Repository: "kustomize/skep", Tag: o.Version, Image: made}, err
}

// imageLine is the image of a container.
var imageLine = regexp.MustCompile(`(?m)^(\s*(?:- )?image: )(\S+)$`)

// byDigest is a manifest with its images replaced. An image's component is the end of its
// name, behind skep-; used gets those that there are.
func byDigest(manifest []byte, images map[string]name.Digest, used map[string]bool) ([]byte, error) {
	var missing error
	replaced := imageLine.ReplaceAllFunc(manifest, func(line []byte) []byte {
		parts := imageLine.FindSubmatch(line)
		repository, _, _ := strings.Cut(path.Base(string(parts[2])), ":")
		component := strings.TrimPrefix(repository, "skep-")
		digest, ok := images[component]
		if !ok {
			missing = fmt.Errorf("the image of %s is not given: give the image of every component, or of none", component)
			return line
		}
		used[component] = true
		return []byte(string(parts[1]) + digest.Context().Name() + "@" + digest.DigestStr())
	})
	return replaced, missing
}
