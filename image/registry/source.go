package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	remotetransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
)

// attachments is where signatures and the like of an image come from.
type attachments interface {
	image.Source
	// Tagged returns the manifest that a tag names now.
	Tagged(ctx context.Context, tag string) ([]byte, error)
	// Referrers returns the manifests whose subject is the digest, and whether
	// there are more than were read.
	Referrers(ctx context.Context, digest v1.Hash) (found []v1.Descriptor, more bool, err error)
}

// registrySource reads one repository of a registry.
type registrySource struct {
	puller  *remote.Puller
	repo    name.Repository
	secrets *transport.Secrets
	// report is that of Client.
	report func(registry string, cause error) error
}

// classify is Classify of an error of this repository's registry.
func (s *registrySource) classify(verb string, ref name.Reference, err error) error {
	return Classify(verb, ref.String(), withheld(s.repo.RegistryStr(), err, s.report))
}

func (s *registrySource) get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	return within(ctx, func() (*remote.Descriptor, error) { return s.puller.Get(ctx, ref) })
}

// Manifest implements image.Source.
func (s *registrySource) Manifest(ctx context.Context, digest v1.Hash) (raw []byte, err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	ref := s.repo.Digest(digest.String())
	got, err := s.get(ctx, ref)
	var full *image.TooManyValuesError
	if errors.As(err, &full) && full.Digest == digest {
		return nil, image.Malformed("fetch manifest %s: %w", ref, full)
	}
	if err != nil {
		return nil, s.classify("fetch manifest", ref, err)
	}
	if h := image.Sum(got.Manifest); h != digest {
		return nil, image.Unavailable("fetch manifest %s: the registry sent one with digest %s", ref, h)
	}
	return got.Manifest, nil
}

// Blob implements image.Source.
func (s *registrySource) Blob(ctx context.Context, d v1.Descriptor) (data []byte, err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	ref := s.repo.Digest(d.Digest.String())
	layer, err := within(ctx, func() (v1.Layer, error) { return s.puller.Layer(ctx, ref) })
	if err != nil {
		return nil, s.classify("fetch blob", ref, err)
	}
	body, err := layer.Compressed()
	if err != nil {
		return nil, s.classify("fetch blob", ref, err)
	}
	defer func() { _ = body.Close() }()
	data, err = image.ReadVerified(body, d)
	var wrong *image.SizeError
	if !errors.As(err, &wrong) {
		return data, s.classify("fetch blob", ref, err)
	}
	if !wrong.Verified {
		// Of what is longer no more is read than was asked for: the registry tells
		// whether the blob that it has is another's length.
		size, err := layer.Size()
		if err != nil {
			return nil, s.classify("fetch blob", ref, err)
		}
		wrong.Verified = size >= 0 && size > d.Size
	}
	return nil, image.Unavailable("fetch blob %s: %w", ref, wrong)
}

// Tagged implements attachments.
func (s *registrySource) Tagged(ctx context.Context, tag string) (raw []byte, err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	ref := s.repo.Tag(tag)
	got, err := s.get(ctx, ref)
	var full *image.TooManyValuesError
	if errors.As(err, &full) {
		return nil, image.Malformed("fetch manifest %s: %w", ref, full)
	}
	if err != nil {
		return nil, s.classify("fetch manifest", ref, err)
	}
	return got.Manifest, nil
}

// Referrers implements attachments.
func (s *registrySource) Referrers(ctx context.Context, digest v1.Hash) (found []v1.Descriptor, more bool, err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	ref := s.repo.Digest(digest.String())
	index, err := within(ctx, func() (v1.ImageIndex, error) {
		return remote.Referrers(ref, remote.Reuse(s.puller), remote.WithContext(ctx))
	})
	if err != nil {
		return nil, false, s.classify("list referrers of", ref, err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, false, s.classify("list referrers of", ref, err)
	}
	return list.Manifests, list.Annotations[transport.AnnotationMore] != "", nil
}

// head asks what a reference stands for: one HEAD, and a GET where the registry
// answers that with less than a digest.
func (s *registrySource) head(ctx context.Context, ref name.Reference) (digest v1.Hash, err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	d, err := within(ctx, func() (*v1.Descriptor, error) { return s.puller.Head(ctx, ref) })
	if err == nil && d.Digest.Algorithm != "sha256" {
		return v1.Hash{}, image.Unavailable("resolve %s: the registry names it by %s, and only sha256 is accepted: name the image by its sha256 digest",
			ref, d.Digest.Algorithm)
	}
	if err == nil {
		return d.Digest, nil
	}
	if !worthGet(ctx, err) {
		return v1.Hash{}, s.classify("resolve", ref, err)
	}
	got, err := s.get(ctx, ref)
	if err != nil {
		return v1.Hash{}, s.classify("resolve", ref, err)
	}
	// The digest is of what was sent, not what a header says.
	return image.Sum(got.Manifest), nil
}

// worthGet reports whether a failed HEAD may be the registry's dislike of HEAD.
func worthGet(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	var status *remotetransport.Error
	if errors.As(err, &status) {
		switch status.StatusCode {
		case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusBadRequest:
			return true
		}
		return false
	}
	// The answer came and lacks a header that HEAD needs.
	return !isNetwork(err)
}

// registrySink writes to one repository of a registry.
type registrySink struct {
	pusher  *remote.Pusher
	repo    name.Repository
	secrets *transport.Secrets
}

// PutBlob implements sink.
func (s *registrySink) PutBlob(ctx context.Context, d v1.Descriptor, data []byte) (err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	layer := &rawLayer{descriptor: d, data: data}
	return Classify("push blob", s.repo.Digest(d.Digest.String()).String(), s.pusher.Upload(ctx, s.repo, layer))
}

// PutChild implements sink.
func (s *registrySink) PutChild(ctx context.Context, d v1.Descriptor, data []byte) error {
	return s.PutManifest(ctx, d, data, "")
}

// PutManifest implements sink.
func (s *registrySink) PutManifest(ctx context.Context, d v1.Descriptor, data []byte, tag string) (err error) {
	defer s.secrets.Hide(&err, s.repo.Name())
	var ref name.Reference = s.repo.Digest(d.Digest.String())
	if tag != "" {
		ref = s.repo.Tag(tag)
	}
	return Classify("push manifest", ref.String(), s.pusher.Put(ctx, ref, &rawManifest{mediaType: d.MediaType, data: data}))
}

// rawManifest is a remote.Taggable of bytes that are pushed as they are.
type rawManifest struct {
	mediaType types.MediaType
	data      []byte
}

// RawManifest implements remote.Taggable.
func (m *rawManifest) RawManifest() ([]byte, error) { return m.data, nil }

// MediaType tells remote what to announce the manifest as.
func (m *rawManifest) MediaType() (types.MediaType, error) { return m.mediaType, nil }

// rawLayer is a v1.Layer of stored bytes that nobody expands.
type rawLayer struct {
	descriptor v1.Descriptor
	data       []byte
}

// Digest implements v1.Layer.
func (l *rawLayer) Digest() (v1.Hash, error) { return l.descriptor.Digest, nil }

// DiffID implements v1.Layer with the digest of the stored bytes, which is what
// a registry goes by.
func (l *rawLayer) DiffID() (v1.Hash, error) { return l.descriptor.Digest, nil }

// Compressed implements v1.Layer.
func (l *rawLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}

// Uncompressed implements v1.Layer with the stored bytes.
func (l *rawLayer) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

// Size implements v1.Layer.
func (l *rawLayer) Size() (int64, error) { return int64(len(l.data)), nil }

// MediaType implements v1.Layer. It is one that go-containerregistry pushes.
func (l *rawLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
