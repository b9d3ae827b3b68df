// Package artifacts makes what a release has beside binaries and images: the Helm chart,
// the CUE module, the policy library and the kustomize directory as OCI artifacts, and
// the release notes.
//
// It owns their formats, which Helm, CUE, OPA and Flux define. It is pure: it reads the
// files that it is given and what is in the binary, writes nothing and knows no registry.
// Equal input gives equal digests, as long as Go's compression stays as it is: there is no
// time in an artifact but the one that is given.
package artifacts

import (
	"io/fs"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Artifact is an OCI artifact, and where it is pushed to.
type Artifact struct {
	// Repository is the artifact's below a registry's folder, such as charts/skep.
	Repository string
	// Tag is the version as readers of this kind of artifact ask for it.
	Tag string
	v1.Image
}

// Options say what chart and kustomize directory are made of.
type Options struct {
	// Files is a folder of the repository: charts/skep for Chart, deploy/kustomize for
	// Kustomize. Needed.
	Files fs.FS
	// Version is the release's, as v0.2.0. Needed.
	Version string
	// Images are the images of the components, controller and agent, which replace those
	// that the files name. Those stay where none is given.
	Images map[string]name.Digest
	// Created becomes the time of the files, and an annotation. The zero time is none.
	Created time.Time
}

// Annotations of the OCI image specification; package image has others.
const (
	annotationDescription = "org.opencontainers.image.description"
	annotationTitle       = "org.opencontainers.image.title"
	annotationURL         = "org.opencontainers.image.url"
	annotationVersion     = "org.opencontainers.image.version"
)
