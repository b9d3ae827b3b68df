// Package collect reads from registries what may be a signature or an attestation of an
// image, within bounds.
//
// It verifies nothing, and decides nothing.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
)

// What All takes in at most for one digest, from the referrers and from the
// tags each. Whoever can push to the repository can write what is read here, so
// all of it is bounded. What by itself is larger than a bound is no signature, and is
// skipped. Where there is more of it than a bound, the rest is unknown: Collected.Truncated.
const (
	// maxReferrers is how many referring manifests with signatures are read.
	maxReferrers = 64
	// maxManifests is how many referring manifests are read in all, a chunk at a time:
	// most of an image's referrers may be none of a signature.
	maxManifests = 256
	chunk        = 16
	// maxManifest is the size of a referring manifest, in bytes. Those of signatures have
	// a few KiB.
	maxManifest = 4 << 20
	// MaxLayers is how many signatures of one manifest are read: the newest, which
	// cosign appends.
	MaxLayers = 64
	// maxCandidates is how many signatures are read from one place, whatever the
	// number of manifests that name them: each is tried with every signer. Two tags
	// hold as many at most.
	maxCandidates = 2 * MaxLayers
	// maxBlob is the size of one signature, attestation or bundle, in bytes.
	maxBlob = 4 << 20
	// maxAnnotation is the size of one annotation of a layer, in bytes. Cosign's
	// certificates, chains, entries of logs and timestamps take 10 KiB at most.
	maxAnnotation = 64 << 10
	// maxTotal is the size of them all in one place, in bytes: of what is read, and of
	// what is kept, annotations and repeated contents included.
	maxTotal = 8 << 20
	// maxRequests is how many requests are under way at once.
	maxRequests = 4
	// maxSkipped is how many reasons are kept.
	maxSkipped = 32
	// maxRepositories is how many repositories of signers are read, beside the image's
	// own. Each has the bytes of one place.
	maxRepositories = 4
)

// bundlePrefix begins the media type of every version of a sigstore bundle.
const bundlePrefix = "application/vnd.dev.sigstore.bundle"

// emptyType is the media type of the config of an artifact that has none.
const emptyType = "application/vnd.oci.empty.v1+json"

// All reads everything about r.Digest that might be a signature or an
// attestation: OCI referrers, or the tag that stands in for them where the
// registry lacks the API, and cosign's tags sha256-….sig and .att, all at once, and the
// same in the repositories of signers. The media type of a referrer is not asked:
// registries report some bundles as empty. It verifies nothing.
//
// One image with one signature by cosign's defaults takes 4 requests, ping
// included, and 5 where the referrers API is missing; every bundle takes 2
// more, and so does the first payload that carries annotations take 1. How many
// signers there are does not matter; each of their repositories takes 3, ping aside.
//
// The error means that it could not be determined what there is (the registry did not
// answer, or answered garbage), and is of a kind of package image. With a
// *RepositoryError comes what else there is, as a part, and with a *BlobError what else
// there is, as truncated. What is missing is no error,
// and what is malformed or too big is in Skipped. The time limit is ctx's.
func All(ctx context.Context, source Source, r image.Resolved, repositories ...string) (Collected, error) {
	return Again(ctx, source, r, nil, repositories...)
}

// Again is All where something counted before. That is read first, and by the digests of
// its manifests even where no list or tag names them any more: a person who may only push
// takes none of it away. Where a registry has it no more, it is gone. Of an artifact of before
// the kind and the manifest suffice.
func Again(ctx context.Context, source Source, r image.Resolved, before []Artifact, repositories ...string) (Collected, error) {
	return together(ctx, func(ctx context.Context) (Collected, error) {
		return gather(ctx, source, r, before, (*collector).readReferrers)
	}, func(ctx context.Context) (Collected, error) {
		return gatherRest(ctx, source, r, before, repositories)
	})
}

// together joins what is read at once. A *RepositoryError and a *BlobError come with what
// else was read.
func together(ctx context.Context, reads ...func(context.Context) (Collected, error)) (all Collected, err error) {
	found, failed := make([]Collected, len(reads)), make([]error, len(reads))
	group, ctx := errgroup.WithContext(ctx)
	for i, read := range reads {
		group.Go(func() error {
			if found[i], failed[i] = read(ctx); readsRest(failed[i]) {
				return nil
			}
			return failed[i]
		})
	}
	if err := group.Wait(); err != nil {
		return Collected{}, err
	}
	for _, one := range found {
		all = join(all, one)
	}
	return all, errors.Join(failed...)
}

// readsRest reports whether what else there is comes with an error.
func readsRest(err error) bool {
	return errors.As(err, new(*RepositoryError)) || errors.As(err, new(*BlobError))
}

// Until is Again that reads the referrers first, and leaves cosign's
// tags and the repositories of signers alone where enough says so of what they hold. An image with one bundle
// then takes 4 requests, 5 where the referrers API is missing, and one with a
// legacy signature what it takes anyway, one round trip later.
//
// What comes back may be Partial: it shows who signed, and not that nobody else
// did. A caller that would reject because of what is missing completes it first. A blob
// that the registry does not hand out is an error only where enough says no of the
// others.
func Until(ctx context.Context, source Source, r image.Resolved, before []Artifact, enough func(Collected) (bool, error),
	repositories ...string) (Collected, error) {
	part, unread := gather(ctx, source, r, before, (*collector).readReferrers)
	if unread != nil && !readsRest(unread) {
		return Collected{}, unread
	}
	part.Partial = true
	stop, err := enough(part)
	switch {
	case err != nil:
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	case stop:
		part.Unread = unread != nil
		return part, nil
	}
	all, err := Complete(ctx, source, r, part, before, repositories...)
	if err == nil || readsRest(err) {
		err = errors.Join(unread, err)
	}
	return all, err
}

// Complete adds what Until left out: 2 requests, and one for every
// attestation and for every payload with annotations. What is not Partial comes
// back as it is. What counted before is as in Again.
func Complete(ctx context.Context, source Source, r image.Resolved, part Collected, before []Artifact, repositories ...string) (Collected, error) {
	if !part.Partial {
		return part, nil
	}
	if part.Digest != r.Digest {
		return Collected{}, fmt.Errorf("collect signatures of %s: what was collected so far is about %s", r.Reference, part.Digest)
	}
	if part.Unread {
		return Again(ctx, source, r, before, repositories...)
	}
	part.Partial = false
	return together(ctx, func(context.Context) (Collected, error) { return part, nil }, func(ctx context.Context) (Collected, error) {
		return gatherRest(ctx, source, r, before, repositories)
	})
}

// place reads one of the places where signatures are kept.
type place func(*collector, context.Context) error

// gather reads one place. With a *BlobError comes what else was read.
func gather(ctx context.Context, source Source, r image.Resolved, before []Artifact, read place) (Collected, error) {
	digest, err := v1.NewHash(r.Digest)
	if err != nil || digest.Algorithm != "sha256" {
		return Collected{}, fmt.Errorf("collect signatures of %s: digest %q is not sha256:…: resolve the reference first", r.Reference, r.Digest)
	}
	from, err := source.Attachments(r)
	if err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	c := newCollector(from, digest, "", before)
	c.know(guessPayload(r))
	if err := read(c, ctx); err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	if c.failed != nil {
		err = fmt.Errorf("collect signatures of %s: %w", r.Reference, &BlobError{c.failed})
	}
	return c.collected(), err
}

// gatherRest reads what is left beside the referrers: cosign's tags, and the
// repositories of signers.
func gatherRest(ctx context.Context, source Source, r image.Resolved, before []Artifact, repositories []string) (Collected, error) {
	return together(ctx, func(ctx context.Context) (Collected, error) {
		return gather(ctx, source, r, before, (*collector).readTags)
	}, func(ctx context.Context) (Collected, error) {
		return gatherElsewhere(ctx, source, r, before, repositories)
	})
}

// gatherElsewhere reads the repositories of signers, all at once: none has another wait.
// The error is of *RepositoryErrors.
func gatherElsewhere(ctx context.Context, source Source, r image.Resolved, before []Artifact, repositories []string) (Collected, error) {
	var reads []func(context.Context) (Collected, error)
	for _, repository := range readable(repositories) {
		reads = append(reads, func(ctx context.Context) (Collected, error) {
			found, err := gatherFrom(ctx, source, repository, r.Digest, before)
			switch {
			case errors.Is(err, image.ErrNotAllowed):
				found.Skipped = []string{fmt.Sprintf("repository %s: it is not among the registries that are allowed", repository)}
			case err != nil:
				return found, &RepositoryError{Repository: repository, Err: err}
			}
			found.Repositories = []string{repository}
			return found, nil
		})
	}
	all, err := together(ctx, reads...)
	all.Digest = r.Digest
	if more := len(repositories) - maxRepositories; more > 0 {
		unread := fmt.Sprintf("%d of %d repositories of signers: no more than %d are read", more, len(repositories), maxRepositories)
		all.Truncated, all.Skipped = cmp.Or(all.Truncated, unread), append(all.Skipped, unread)
	}
	if err != nil {
		all = all.For(repositories)
	}
	return all, err
}

// gatherFrom reads one repository of a signer. Where there is more in it than the bytes
// of one place, an error comes with what was read: what is missing may be what counts.
func gatherFrom(ctx context.Context, source Source, repository, digest string, before []Artifact) (Collected, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return Collected{}, fmt.Errorf("digest %q: %w", digest, err)
	}
	// What answers there says nothing of the image's own registry.
	ctx, _ = transport.Answers(ctx)
	from, err := source.Elsewhere(repository, digest)
	if err != nil {
		return Collected{}, err
	}
	c := newCollector(from, hash, repository, before)
	for _, read := range []place{(*collector).readReferrers, (*collector).readTags} {
		if err := read(c, ctx); err != nil && !errors.Is(err, image.ErrNotFound) {
			return Collected{}, err
		}
	}
	if c.failed != nil {
		return Collected{}, c.failed
	}
	found := c.collected()
	if c.overfull {
		err = fmt.Errorf("more than %d bytes are about %s, and no more are read: remove what is not needed: %w", maxTotal, digest, image.ErrTooLong)
	}
	return found, err
}

// join puts together what two places hold.
func join(a, b Collected) Collected {
	return Collected{
		Digest:       cmp.Or(a.Digest, b.Digest),
		Artifacts:    inOrder(slices.Concat(a.Artifacts, b.Artifacts)),
		Skipped:      slices.Concat(a.Skipped, b.Skipped),
		Repositories: slices.Concat(a.Repositories, b.Repositories),
		Truncated:    cmp.Or(a.Truncated, b.Truncated),
		Partial:      a.Partial || b.Partial,
		Unread:       a.Unread || b.Unread,
	}
}

// inOrder sorts artifacts, so that their order does not depend on the
// registry's.
func inOrder(artifacts []Artifact) []Artifact {
	slices.SortStableFunc(artifacts, func(a, b Artifact) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Origin, b.Origin))
	})
	return artifacts
}

// guessPayload is what cosign signs for r when nobody asks for annotations. It
// is used only where its hash is the one asked for, and saves a request.
func guessPayload(r image.Resolved) []byte {
	d, err := r.ByDigest()
	if err != nil {
		return nil
	}
	b, err := payload.Cosign{Image: d}.MarshalJSON()
	if err != nil {
		return nil
	}
	return b
}
