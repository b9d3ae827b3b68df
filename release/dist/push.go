package dist

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing/sign"
)

// pushTimeout bounds the push of one image, and that of the files.
const pushTimeout = 10 * time.Minute

// What the files of a release are pushed as: an artifact whose layers are files with titles,
// as oras pull takes it.
const (
	filesRepository = "skep-release"
	filesType       = "application/vnd.skep.release.v1"
	fileType        = "application/octet-stream"
)

// push uploads everything: images by their digests first and signatures next, so that clients
// that follow a tag find what is signed.
func (r *release) push(ctx context.Context) error {
	c, err := client()
	if err != nil {
		return err
	}
	names, signatures, err := r.namesOfFiles()
	if err != nil {
		return err
	}
	files, err := r.filesArtifact(names)
	if err != nil {
		return err
	}
	if err := r.neverMoved(ctx, c, Artifact{Repository: filesRepository, Tag: r.Version, Image: files}); err != nil {
		return err
	}
	for _, a := range r.artifacts {
		if err := r.pushArtifact(ctx, c, a); err != nil {
			return err
		}
	}
	if err := r.pushFiles(ctx, c, files, r.Version); err != nil {
		return err
	}
	// Signatures are other ones each time, and so an artifact of their own.
	if files, err = r.filesArtifact(signatures); err != nil {
		return err
	}
	return r.pushFiles(ctx, c, files, r.Version+"-signatures")
}

// neverMoved returns an error where the registry has a tag of the release for something else: what
// users have verified would not be what others pull. Only a registry that says that it has no such
// tag has none: one that denies access may have it.
func (r *release) neverMoved(ctx context.Context, c *registry.Client, files Artifact) error {
	for _, a := range append(slices.Clone(r.artifacts), files) {
		want, err := a.digest()
		if err != nil {
			return err
		}
		tagged := r.Folder + "/" + a.Repository + ":" + a.Tag
		switch found, err := c.Resolve(ctx, tagged); {
		case errors.Is(err, image.ErrNotFound):
		case errors.Is(err, image.ErrUnauthorized):
			return fmt.Errorf("push %s: it could not be determined whether it was released already: log in with a right to pull as well as to push, "+
				"and create a repository that does not exist yet: %w", tagged, err)
		case err != nil:
			return fmt.Errorf("push %s: it could not be determined whether it was released already: %w", tagged, err)
		case found.Digest != want.String():
			return fmt.Errorf("push %s: it was released already as %s, and this release has %s: choose the next version", tagged, found.Digest, want)
		}
	}
	return nil
}

// pushArtifact copies the layout of an artifact, with its signatures.
func (r *release) pushArtifact(ctx context.Context, c *registry.Client, a Artifact) error {
	digests, err := a.digests()
	if err != nil {
		return err
	}
	from := filepath.Join(r.Dir, layouts, filepath.FromSlash(a.Repository))
	to := r.Folder + "/" + a.Repository
	// The index comes last, and then its tag.
	for i := len(digests) - 1; i >= 0; i-- {
		digest := digests[i].String()
		if _, err := c.Copy(ctx, image.Resolved{Reference: a.Repository, Repository: from, Digest: digest}, to+"@"+digest); err != nil {
			return fmt.Errorf("push %s: %w", to, err)
		}
	}
	if _, err := c.Copy(ctx, image.Resolved{Reference: a.Repository, Repository: from, Digest: digests[0].String()}, to+":"+a.Tag); err != nil {
		return fmt.Errorf("push %s: %w", to, err)
	}
	return nil
}

// namesOfFiles are the files of the release, and their signatures.
func (r *release) namesOfFiles() (files, signatures []string, err error) {
	entries, err := os.ReadDir(r.Dir)
	for _, e := range entries {
		switch ending := filepath.Ext(e.Name()); {
		case e.IsDir():
		case ending == signatureEnding || ending == attestationEnding:
			signatures = append(signatures, e.Name())
		default:
			files = append(files, e.Name())
		}
	}
	return files, signatures, err
}

// pushFiles pushes an artifact of files, signs it, and then tags it.
func (r *release) pushFiles(ctx context.Context, c *registry.Client, artifact v1.Image, tag string) error {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	digest, err := artifact.Digest()
	if err != nil {
		return err
	}
	to := r.Folder + "/" + filesRepository
	byDigest, err := name.NewDigest(to + "@" + digest.String())
	if err != nil {
		return err
	}
	how := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.Write(byDigest, artifact, how...); err != nil {
		return fmt.Errorf("push %s: %w", byDigest, err)
	}
	at, err := c.Parse(byDigest.String())
	if err != nil {
		return err
	}
	if err := sign.Image(ctx, c, at, r.Key, sign.Options{}); err != nil {
		return err
	}
	if err := remote.Tag(byDigest.Tag(tag), artifact, how...); err != nil {
		return fmt.Errorf("tag %s: %w", byDigest, err)
	}
	_, err = fmt.Fprintf(r.Out, "files: %s:%s@%s\n", to, tag, digest)
	return err
}

// filesArtifact is an artifact of files, each a layer.
func (r *release) filesArtifact(names []string) (v1.Image, error) {
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), filesType)
	for _, name := range names {
		layer, err := newFileLayer(filepath.Join(r.Dir, name))
		if err != nil {
			return nil, err
		}
		added := mutate.Addendum{Layer: layer, MediaType: fileType, Annotations: map[string]string{"org.opencontainers.image.title": name}}
		if artifact, err = mutate.Append(artifact, added); err != nil {
			return nil, err
		}
	}
	annotated, ok := mutate.Annotations(artifact, r.stamp.Annotations("Files of Skep "+r.Version)).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate files: it is %T", annotated)
	}
	return annotated, nil
}

// fileLayer is a file as it is: neither packed nor read into memory.
type fileLayer struct {
	path   string
	digest v1.Hash
	size   int64
}

func newFileLayer(path string) (*fileLayer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	sum, err := sumOf(path)
	return &fileLayer{path: path, digest: v1.Hash{Algorithm: "sha256", Hex: sum}, size: info.Size()}, err
}

// Digest implements v1.Layer.
func (l *fileLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID implements v1.Layer.
func (l *fileLayer) DiffID() (v1.Hash, error) { return l.digest, nil }

// Compressed implements v1.Layer.
func (l *fileLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Uncompressed implements v1.Layer.
func (l *fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Size implements v1.Layer.
func (l *fileLayer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l *fileLayer) MediaType() (types.MediaType, error) { return fileType, nil }
