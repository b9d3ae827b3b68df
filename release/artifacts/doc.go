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
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/mod/semver"
)

// Artifact is an OCI artifact, and where it is pushed to.
type Artifact struct {
	// Repository is the artifact's below a registry's folder, such as charts/skep.
	Repository string
	// Tag is the version as readers of this kind of artifact ask for it.
	Tag string
	v1.Image
}

// Image titles and versions, as the OCI image specification calls them.
const (
	annotationCreated     = "org.opencontainers.image.created"
	annotationDescription = "org.opencontainers.image.description"
	annotationRevision    = "org.opencontainers.image.revision"
	annotationSource      = "org.opencontainers.image.source"
	annotationTitle       = "org.opencontainers.image.title"
	annotationURL         = "org.opencontainers.image.url"
	annotationVersion     = "org.opencontainers.image.version"
)

// sourceURL is the repository that a release is made from.
const sourceURL = "https://github.com/skep-dev/skep"

// checkVersion returns an error for everything but a whole semantic version: v1.2.3, with
// a pre-release or build metadata or without.
func checkVersion(version string) error {
	if core, _, _ := strings.Cut(version, "+"); semver.Canonical(version) != core || core == "" {
		return fmt.Errorf("read version %q: write it as vX.Y.Z, such as v0.2.0 or v0.2.0-rc.1", version)
	}
	return nil
}

// tagOf is a version as a tag, which has no place for the + of build metadata. Helm writes
// it so, too.
func tagOf(version string) string { return strings.ReplaceAll(version, "+", "_") }
