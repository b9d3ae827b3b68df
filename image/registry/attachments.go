package registry

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
)

// Attachments reads and writes what belongs to one image, in its registry or
// layout: signatures and attestations, under tags made of the digest and as
// referrers. What it returns has the digest that was asked for; what is not
// there is ErrNotFound, and what repeats the credentials that its registry was shown
// is ErrMalformed.
type Attachments struct {
	from    attachments
	to      sink
	digest  v1.Hash
	secrets *transport.Secrets
}

// Attachments opens those of r. It asks the registry nothing yet.
func (c *Client) Attachments(r image.Resolved) (*Attachments, error) {
	digest, err := image.ParseDigest(r.Digest)
	if err != nil {
		return nil, err
	}
	from, err := c.attached(r)
	if err != nil {
		return nil, err
	}
	to, err := c.sink(r)
	if err != nil {
		return nil, err
	}
	return &Attachments{from: from, to: to, digest: digest, secrets: c.secrets}, nil
}

// Elsewhere opens those of a digest in a repository that is not an image's own, such as
// one for signatures: registry/repository. It is one that Options.AllowedRegistries must
// allow, and asks the registry nothing yet.
func (c *Client) Elsewhere(repository, digest string) (*Attachments, error) {
	r, err := c.Pin(repository, digest)
	if err != nil {
		return nil, err
	}
	return c.Attachments(r)
}

// Referrers lists the manifests whose subject is the image; where the registry
// lacks the API, those of the tag that stands in for it. A registry's pages are
// followed within bounds; more is true where there are further ones.
func (a *Attachments) Referrers(ctx context.Context) (found []v1.Descriptor, more bool, err error) {
	return a.from.Referrers(ctx, a.digest)
}

// Tagged returns the manifest that a tag of the image's repository names now.
func (a *Attachments) Tagged(ctx context.Context, tag string) ([]byte, error) {
	return a.discreet(a.from.Tagged(ctx, tag))
}

// Manifest returns a manifest of the image's repository.
func (a *Attachments) Manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	return a.discreet(a.from.Manifest(ctx, digest))
}

// Blob returns exactly the descriptor's bytes.
func (a *Attachments) Blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return a.discreet(a.from.Blob(ctx, d))
}

// discreet rejects content that repeats a secret: what is said of it is shown to
// people who may see no credentials.
func (a *Attachments) discreet(content []byte, err error) ([]byte, error) {
	if err == nil && a.secrets.InContent(content) {
		return nil, image.Malformed("read an attachment: it repeats credentials that its registry was shown")
	}
	return content, err
}

// PutBlob writes a blob beside the image.
func (a *Attachments) PutBlob(ctx context.Context, d v1.Descriptor, data []byte) error {
	return a.to.PutBlob(ctx, d, data)
}

// PutManifest writes a manifest beside the image, under a tag if there is one,
// and makes it a referrer where it has a subject.
func (a *Attachments) PutManifest(ctx context.Context, d v1.Descriptor, data []byte, tag string) error {
	return a.to.PutManifest(ctx, d, data, tag)
}
