package image

import (
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The media types and annotations of an artifact as flux push artifact writes it, and Flux's
// OCIRepository reads it.
const (
	// FluxConfigMediaType is the media type of the artifact's config.
	FluxConfigMediaType types.MediaType = "application/vnd.cncf.flux.config.v1+json"
	// FluxContentMediaType is the media type of the artifact's only layer.
	FluxContentMediaType types.MediaType = "application/vnd.cncf.flux.content.v1.tar+gzip"

	// AnnotationCreated, AnnotationSource and AnnotationRevision are those of the OCI image
	// specification: when the content was made, in RFC 3339, where it comes from, and which
	// version of that it is.
	AnnotationCreated  = "org.opencontainers.image.created"
	AnnotationSource   = "org.opencontainers.image.source"
	AnnotationRevision = "org.opencontainers.image.revision"
)

// Origin says where the manifests of an artifact come from.
type Origin struct {
	// Source is the address of the repository, without secrets.
	Source string `json:"source"`
	// Revision is its version as Flux writes it: BRANCH@sha1:HASH, or sha1:HASH.
	Revision string `json:"revision"`
	// Created is the time of that version, so that the same version gives the same digest.
	// Its fraction of a second is dropped.
	Created time.Time `json:"created"`
}

// BuildManifests packs a file of Kubernetes manifests as an artifact for Flux's OCIRepository
// and Argo CD's OCI source: one layer with the file at its root. The same file and origin give
// the same digests.
func BuildManifests(filename string, manifests []byte, from Origin) (*Built, error) {
	created := from.Created.UTC().Truncate(time.Second)
	plain, packed, err := Archive([]File{{filename, manifests}}, created)
	if err != nil {
		return nil, fmt.Errorf("pack manifests: %w", err)
	}
	b := &Built{Blobs: map[v1.Hash][]byte{}}
	config, err := b.addJSON(FluxConfigMediaType, v1.ConfigFile{
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{Sum(plain)}},
	})
	if err != nil {
		return nil, err
	}
	b.Root, err = b.addJSON(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        config,
		Layers:        []v1.Descriptor{b.Add(FluxContentMediaType, packed)},
		Annotations: map[string]string{
			AnnotationCreated: created.Format(time.RFC3339), AnnotationSource: from.Source, AnnotationRevision: from.Revision,
		},
	})
	return b, err
}
