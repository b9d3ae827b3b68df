package signing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
)

// What Collect takes in at most for one digest, from the referrers and from the
// tags each. Whoever can push to the repository can write what is read here, so
// all of it is bounded; what is beyond a bound is skipped and said so.
const (
	// maxReferrers is how many referring manifests are read.
	maxReferrers = 64
	// maxLayers is how many signatures of one manifest are read: the newest, which
	// cosign appends.
	maxLayers = 64
	// maxCandidates is how many signatures are read from one place, whatever the
	// number of manifests that name them: each is tried with every signer. Two tags
	// hold as many at most.
	maxCandidates = 2 * maxLayers
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

// Source is where signatures are read from and written to; *registry.Client is
// one. The client that resolved the image spares the ping and the token.
type Source interface {
	// Attachments opens what belongs to one image.
	Attachments(r image.Resolved) (*registry.Attachments, error)
	// Elsewhere opens what belongs to one digest in a repository that an admin names.
	Elsewhere(repository, digest string) (*registry.Attachments, error)
}

// ArtifactKind says in which form a signature or attestation was stored.
type ArtifactKind string

// The forms of an Artifact.
const (
	// LegacySignature is a layer of cosign's tag sha256-….sig: a simple signing
	// payload, with signature and certificate in annotations.
	LegacySignature ArtifactKind = "signature"
	// LegacyAttestation is a layer of cosign's tag sha256-….att: a DSSE
	// envelope with an in-toto statement.
	LegacyAttestation ArtifactKind = "attestation"
	// Bundle is a sigstore bundle, which may hold either.
	Bundle ArtifactKind = "bundle"
)

// Artifact is one thing that claims to be about a digest. Nothing in it is
// verified.
type Artifact struct {
	Kind ArtifactKind `json:"kind"`
	// Origin says where it was found, for a person to read.
	Origin string `json:"origin"`
	// Content is the payload, envelope or bundle.
	Content []byte `json:"content"`
	// Annotations are those of the layer that cosign reads; a bundle has none.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// bytes is how much of the memory an artifact takes, whatever it shares with others.
func (a Artifact) bytes() int64 {
	return int64(len(a.Content)+len(a.Origin)) + bytesOf(a.Annotations)
}

// bytesOf is the size of annotations.
func bytesOf(annotations map[string]string) int64 {
	n := 0
	for key, value := range annotations {
		n += len(key) + len(value)
	}
	return int64(n)
}

// Collected is everything that claims to be about one digest, as it was found.
// It can be kept as JSON and verified again with other signers, without any
// network.
type Collected struct {
	// Digest is the image's, as sha256:….
	Digest string `json:"digest"`
	// Artifacts are sorted by kind and origin.
	Artifacts []Artifact `json:"artifacts"`
	// Skipped says what was found and not taken in, and why.
	Skipped []string `json:"skipped,omitempty"`
	// Partial is true where cosign's tags were not asked for, since what the
	// referrers hold was enough. Complete adds them.
	Partial bool `json:"partial,omitempty"`
	// Unread is true of a part without a blob that the registry did not hand out, or
	// without a repository that a signer names by now. Complete reads everything again.
	Unread bool `json:"unread,omitempty"`
	// Repositories are those of signers that were read, sorted.
	Repositories []string `json:"repositories,omitempty"`
}

// For is what was collected as far as it goes for signers whose signatures lie in
// repositories of their own: a part, where one of these was not read.
func (c Collected) For(repositories []string) Collected {
	if len(c.Lacks(repositories)) > 0 {
		c.Partial, c.Unread = true, true
	}
	return c
}

// Lacks are those of some repositories that would be read and were not.
func (c Collected) Lacks(repositories []string) []string {
	return slices.DeleteFunc(slices.Clone(readable(repositories)), func(r string) bool { return slices.Contains(c.Repositories, r) })
}

// readable are the repositories that are read of some.
func readable(repositories []string) []string {
	return repositories[:min(len(repositories), maxRepositories)]
}

// Bytes is how much of the memory its artifacts take with their annotations, each
// whatever it shares with others.
func (c Collected) Bytes() int {
	n := int64(0)
	for _, a := range c.Artifacts {
		n += a.bytes()
	}
	return int(n)
}

// Hash identifies what was collected: sha256:… over the JSON of its parts, with the
// sha256 of each content in the content's place. It holds one part at a time, and
// hashes once what several artifacts share.
func (c Collected) Hash() (string, error) {
	artifacts, whole := c.Artifacts, sha256.New()
	c.Artifacts = nil
	to := json.NewEncoder(whole)
	err := to.Encode(c)
	known := contentHashes{}
	for i := 0; i < len(artifacts) && err == nil; i++ {
		a := artifacts[i]
		a.Content = known.of(a.Content)
		err = to.Encode(a)
	}
	if err != nil {
		return "", fmt.Errorf("encode collected signatures: %w", err)
	}
	return "sha256:" + hex.EncodeToString(whole.Sum(nil)), nil
}

// contentHashes are the sha256 of contents, known by where they lie.
type contentHashes map[contentPlace][sha256.Size]byte

// contentPlace is where a content lies in memory, and how long it is.
type contentPlace struct {
	first  *byte
	length int
}

func (known contentHashes) of(content []byte) []byte {
	var place contentPlace
	if len(content) > 0 {
		place = contentPlace{&content[0], len(content)}
	}
	sum, ok := known[place]
	if !ok {
		sum = sha256.Sum256(content)
		known[place] = sum
	}
	return sum[:]
}

// BlobError says that a registry did not hand out a signature that it lists,
// though it answered: it says nothing about whether the registry can be reached.
type BlobError struct{ err error }

// Error is the registry's answer.
func (e *BlobError) Error() string { return e.err.Error() }

// Unwrap returns that answer's error, of a kind of package image.
func (e *BlobError) Unwrap() error { return e.err }

// RepositoryError says that a repository which a signer names could not be read. With
// it comes what else was collected, as a part.
type RepositoryError struct {
	// Repository is the signer's.
	Repository string
	// Err is the cause, of a kind of package image.
	Err error
}

// Error names the repository.
func (e *RepositoryError) Error() string {
	return fmt.Sprintf("collect signatures in repository %s, which a signer names: %v", e.Repository, e.Err)
}

// Unwrap returns the cause.
func (e *RepositoryError) Unwrap() error { return e.Err }

// Collect reads everything about r.Digest that might be a signature or an
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
// *RepositoryError comes what else there is, as a part. What is missing is no error,
// and what is malformed or too big is in Skipped. The time limit is ctx's.
func Collect(ctx context.Context, source Source, r image.Resolved, repositories ...string) (Collected, error) {
	return together(ctx, func(ctx context.Context) (Collected, error) {
		return gather(ctx, source, r, (*collector).readReferrers)
	}, func(ctx context.Context) (Collected, error) {
		return gatherRest(ctx, source, r, repositories)
	})
}

// together joins what is read at once. A *RepositoryError comes with what else was
// read.
func together(ctx context.Context, reads ...func(context.Context) (Collected, error)) (all Collected, err error) {
	found, failed := make([]Collected, len(reads)), make([]error, len(reads))
	group, ctx := errgroup.WithContext(ctx)
	for i, read := range reads {
		group.Go(func() error {
			var elsewhere *RepositoryError
			if found[i], failed[i] = read(ctx); errors.As(failed[i], &elsewhere) {
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

// CollectUntil is Collect that reads the referrers first, and leaves cosign's
// tags and the repositories of signers alone where enough says so of what they hold. An image with one bundle
// then takes 4 requests, 5 where the referrers API is missing, and one with a
// legacy signature what it takes anyway, one round trip later.
//
// What comes back may be Partial: it shows who signed, and not that nobody else
// did. Whoever would refuse because of what is missing completes it first. A blob
// that the registry does not hand out is an error only where enough says no of the
// others.
func CollectUntil(ctx context.Context, source Source, r image.Resolved, enough func(Collected) (bool, error), repositories ...string) (Collected, error) {
	part, unread := gather(ctx, source, r, (*collector).readReferrers)
	var blob *BlobError
	if unread != nil && !errors.As(unread, &blob) {
		return Collected{}, unread
	}
	part.Partial, part.Unread = true, unread != nil
	stop, err := enough(part)
	switch {
	case err != nil:
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	case stop:
		return part, nil
	case unread != nil:
		return Collected{}, unread
	}
	return Complete(ctx, source, r, part, repositories...)
}

// Complete adds what CollectUntil left out: 2 requests, and one for every
// attestation and for every payload with annotations. What is not Partial comes
// back as it is.
func Complete(ctx context.Context, source Source, r image.Resolved, part Collected, repositories ...string) (Collected, error) {
	if !part.Partial {
		return part, nil
	}
	if part.Digest != r.Digest {
		return Collected{}, fmt.Errorf("collect signatures of %s: what was collected so far is about %s", r.Reference, part.Digest)
	}
	if part.Unread {
		return Collect(ctx, source, r, repositories...)
	}
	part.Partial = false
	return together(ctx, func(context.Context) (Collected, error) { return part, nil }, func(ctx context.Context) (Collected, error) {
		return gatherRest(ctx, source, r, repositories)
	})
}

// place reads one of the places where signatures are kept.
type place func(*collector, context.Context) error

// gather reads one place. With a *BlobError comes what else was read.
func gather(ctx context.Context, source Source, r image.Resolved, read place) (Collected, error) {
	digest, err := v1.NewHash(r.Digest)
	if err != nil || digest.Algorithm != "sha256" {
		return Collected{}, fmt.Errorf("collect signatures of %s: digest %q is not sha256:…: resolve the reference first", r.Reference, r.Digest)
	}
	from, err := source.Attachments(r)
	if err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	c := newCollector(from, digest, "")
	c.know(guessPayload(r))
	if err := read(c, ctx); err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	if c.failed != nil {
		err = fmt.Errorf("collect signatures of %s: %w", r.Reference, &BlobError{c.failed})
	}
	return Collected{Digest: r.Digest, Artifacts: c.artifacts(), Skipped: c.skipped}, err
}

// gatherRest reads what is left beside the referrers: cosign's tags, and the
// repositories of signers.
func gatherRest(ctx context.Context, source Source, r image.Resolved, repositories []string) (Collected, error) {
	return together(ctx, func(ctx context.Context) (Collected, error) {
		return gather(ctx, source, r, (*collector).readTags)
	}, func(ctx context.Context) (Collected, error) {
		return gatherElsewhere(ctx, source, r, repositories)
	})
}

// gatherElsewhere reads the repositories of signers, all at once: none has another wait.
// The error is of *RepositoryErrors.
func gatherElsewhere(ctx context.Context, source Source, r image.Resolved, repositories []string) (Collected, error) {
	var reads []func(context.Context) (Collected, error)
	for _, repository := range readable(repositories) {
		reads = append(reads, func(ctx context.Context) (Collected, error) {
			found, err := gatherFrom(ctx, source, repository, r.Digest)
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
		all.Skipped = append(all.Skipped, fmt.Sprintf("%d of %d repositories of signers: no more than %d are read", more, len(repositories), maxRepositories))
	}
	if err != nil {
		all = all.For(repositories)
	}
	return all, err
}

// gatherFrom reads one repository of a signer. Where there is more in it than the bytes
// of one place, an error comes with what was read: what is missing may be what counts.
func gatherFrom(ctx context.Context, source Source, repository, digest string) (Collected, error) {
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
	c := newCollector(from, hash, " in "+repository)
	for _, read := range []place{(*collector).readReferrers, (*collector).readTags} {
		if err := read(c, ctx); err != nil && !errors.Is(err, image.ErrNotFound) {
			return Collected{}, err
		}
	}
	if c.failed != nil {
		return Collected{}, &BlobError{c.failed}
	}
	found := Collected{Digest: digest, Artifacts: c.artifacts(), Skipped: c.skipped}
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

// layer is one layer that looks like a signature, before it is read.
type layer struct {
	kind   ArtifactKind
	origin string
	digest v1.Hash
	// size is what its descriptor says.
	size        int64
	annotations map[string]string
	// behind is how many layers of its manifest come before it.
	behind int
}

// bytes is what it takes of the memory by its descriptor.
func (l layer) bytes() int64 { return l.size + bytesOf(l.annotations) }

// shares reports whether another layer names the same content by the same size.
func (l layer) shares(other layer) bool { return l.digest == other.digest && l.size == other.size }

func (l layer) descriptor() v1.Descriptor { return v1.Descriptor{Digest: l.digest, Size: l.size} }

// collector gathers from one place in three steps: which manifests, which layers, their bytes.
type collector struct {
	from   *registry.Attachments
	digest v1.Hash
	// where ends the origin of what is found; empty beside the image.
	where string
	// left is how many bytes may be read still.
	left    int64
	layers  []layer
	noted   map[[sha256.Size]byte]bool
	blobs   map[v1.Hash][]byte
	skipped []string
	// overfull is true where more is there than the bytes of one place.
	overfull bool
	// failed is why the registry did not hand out one of the blobs.
	mu     sync.Mutex
	failed error
}

func newCollector(from *registry.Attachments, digest v1.Hash, where string) *collector {
	return &collector{
		from: from, digest: digest, where: where, left: maxTotal,
		noted: map[[sha256.Size]byte]bool{}, blobs: map[v1.Hash][]byte{},
	}
}

func (c *collector) know(content []byte) {
	if content != nil {
		sum := sha256.Sum256(content)
		c.blobs[v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}] = content
	}
}

func (c *collector) skip(format string, args ...any) {
	if len(c.skipped) < maxSkipped {
		c.skipped = append(c.skipped, fmt.Sprintf(format, args...))
	}
}

// skipOverfull skips a layer since what is there takes more bytes than one place has.
func (c *collector) skipOverfull(l layer) {
	c.overfull = true
	c.skip("%s: %d bytes, annotations included, and no more than %d are read together", l.origin, l.bytes(), maxTotal)
}

// readTags reads what stands under cosign's own tags.
func (c *collector) readTags(ctx context.Context) error {
	tags := []string{SignatureTag(c.digest), AttestationTag(c.digest)}
	manifests, err := readAll(ctx, tags, c.from.Tagged)
	if err != nil {
		return err
	}
	for i, tag := range tags {
		c.read("tag "+tag+c.where, manifests[i], false)
	}
	return c.fetch(ctx)
}

// readReferrers reads what refers to the image.
func (c *collector) readReferrers(ctx context.Context) error {
	all, more, err := c.from.Referrers(ctx)
	if err != nil {
		return err
	}
	if more {
		c.skip("the list of referrers: it is longer than is read, and its first %d are", len(all))
	}
	referrers := inTurn(all)
	if len(referrers) > maxReferrers {
		c.skip("%d of %d referrers: no more than %d are read", len(referrers)-maxReferrers, len(referrers), maxReferrers)
		referrers = referrers[:maxReferrers]
	}
	manifests, err := readAll(ctx, referrers, func(ctx context.Context, digest v1.Hash) ([]byte, error) {
		raw, err := c.from.Manifest(ctx, digest)
		if errors.Is(err, image.ErrTooLong) {
			return []byte{}, nil
		}
		return raw, err
	})
	if err != nil {
		return err
	}
	for i, manifest := range manifests {
		c.read("referrer "+referrers[i].String()+c.where, manifest, true)
	}
	return c.fetch(ctx)
}

// inTurn lists the manifests to read, each once: those that say of themselves that
// they are a bundle, then those that say nothing, since registries report some
// bundles as empty, then the others, such as lists of what is in an image.
func inTurn(all []v1.Descriptor) []v1.Hash {
	rank := func(d v1.Descriptor) int {
		switch kind := d.ArtifactType; {
		case strings.HasPrefix(kind, bundlePrefix):
			return 0
		case kind == "" || kind == emptyType || types.MediaType(kind).IsConfig():
			return 1
		}
		return 2
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b v1.Descriptor) int { return cmp.Compare(rank(a), rank(b)) })
	known := map[v1.Hash]bool{}
	var digests []v1.Hash
	for _, d := range sorted {
		if d.Digest.Algorithm == "sha256" && !known[d.Digest] {
			known[d.Digest] = true
			digests = append(digests, d.Digest)
		}
	}
	return digests
}

// read notes the layers of a manifest that look like signatures. A referrer
// must say itself what it refers to; a tag's name says it.
func (c *collector) read(origin string, raw []byte, referrer bool) {
	if raw == nil {
		return
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		c.skip("%s: it is not a manifest", origin)
		return
	}
	if referrer && (m.Subject == nil || m.Subject.Digest != c.digest) {
		c.skip("%s: its subject is another image", origin)
		return
	}
	if len(m.Layers) > maxLayers {
		c.skip("%s: %d of %d layers: no more than %d are read", origin, len(m.Layers)-maxLayers, len(m.Layers), maxLayers)
	}
	for i, d := range slices.Backward(m.Layers) {
		behind := len(m.Layers) - 1 - i
		if behind == maxLayers {
			break
		}
		kind := kindOf(d.MediaType)
		if kind == "" {
			continue
		}
		where := origin
		if len(m.Layers) > 1 {
			where = fmt.Sprintf("%s, layer %d", origin, i)
		}
		c.add(layer{
			kind: kind, origin: where, digest: d.Digest, size: d.Size,
			annotations: readAnnotations(kind, d.Annotations), behind: behind,
		})
	}
}

// add notes a layer, unless it is none to read, or one that is equal was noted.
func (c *collector) add(l layer) {
	key := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %q", l.kind, l.digest, l.size, l.annotations))
	switch long := tooLong(l.annotations); {
	case l.digest.Algorithm != "sha256":
		c.skip("%s: its digest is not sha256", l.origin)
	case l.size < 0 || l.size > maxBlob:
		c.skip("%s: %d bytes, and no more than %d are read", l.origin, l.size, maxBlob)
	case long != "":
		c.skip("%s: its annotation %s has %d bytes, and no more than %d are read", l.origin, long, len(l.annotations[long]), maxAnnotation)
	case !c.noted[key]:
		c.noted[key] = true
		c.layers = append(c.layers, l)
	}
}

// kindOf returns the form a layer's media type stands for, or nothing.
func kindOf(t types.MediaType) ArtifactKind {
	switch {
	case t == ctypes.SimpleSigningMediaType:
		return LegacySignature
	case t == ctypes.DssePayloadType:
		return LegacyAttestation
	case strings.HasPrefix(string(t), bundlePrefix):
		return Bundle
	}
	return ""
}

// choose bounds the layers that are read. Every manifest has its turn before one
// has a second, so that none keeps the others out by what it names; and what is
// small comes first, so that a large attestation keeps no signature out.
func (c *collector) choose() {
	slices.SortStableFunc(c.layers, func(a, b layer) int {
		return cmp.Or(cmp.Compare(a.behind, b.behind), cmp.Compare(a.bytes(), b.bytes()))
	})
	if more := len(c.layers) - maxCandidates; more > 0 {
		c.skip("%d of %d layers: no more than %d are read", more, len(c.layers), maxCandidates)
		c.layers = c.layers[:maxCandidates]
	}
	slices.SortStableFunc(c.layers, func(a, b layer) int { return cmp.Compare(a.bytes(), b.bytes()) })
}

// fetch reads the layers, each content once, in as few turns as there is room for them
// by the sizes that they claim. What a turn did not take leaves room for the next, so
// that a layer that is not there keeps no other out.
func (c *collector) fetch(ctx context.Context) error {
	c.choose()
	for waiting := c.unread(c.layers); len(waiting) > 0; {
		now, later := c.fitting(waiting)
		if len(now) == 0 {
			c.leaveOut(later)
			return nil
		}
		contents, err := readAll(ctx, now, func(ctx context.Context, l layer) ([]byte, error) { return c.blob(ctx, l.descriptor()) })
		if err != nil {
			return err
		}
		for i, content := range contents {
			c.take(now[i], content)
		}
		waiting = c.unread(later)
	}
	return nil
}

// unread are the layers whose content is not there yet, each content once. One whose
// descriptor gives another size is another request: whoever names it beside a signature
// may lie.
func (c *collector) unread(layers []layer) (unread []layer) {
	for _, l := range layers {
		if c.blobs[l.digest] == nil && !slices.ContainsFunc(unread, l.shares) {
			unread = append(unread, l)
		}
	}
	return unread
}

// leaveOut drops the layers for whose content there is no room.
func (c *collector) leaveOut(unread []layer) {
	c.layers = slices.DeleteFunc(c.layers, func(l layer) bool {
		out := slices.ContainsFunc(unread, l.shares)
		if out {
			c.skipOverfull(l)
		}
		return out
	})
}

// fitting are those of some layers that may be read by the sizes that they claim, and
// the others.
func (c *collector) fitting(layers []layer) (now, later []layer) {
	left := c.left
	for _, l := range layers {
		if l.size > left {
			later = append(later, l)
			continue
		}
		left -= l.size
		now = append(now, l)
	}
	return now, later
}

// take keeps the content of a layer, and counts what was read for it: nothing of what
// is not there (nil), and as much as it claims of what is not as it claims (empty).
func (c *collector) take(l layer, content []byte) {
	switch {
	case content == nil:
	case len(content) == 0:
		c.left -= l.size
	default:
		c.left -= int64(len(content))
		c.blobs[l.digest] = content
	}
}

// blob reads one blob. Where the registry answers, and not with it, the others are
// read all the same; where it is silent, or time is up, nothing is.
func (c *collector) blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	content, err := c.from.Blob(ctx, d)
	passing := []error{image.ErrNotFound, image.ErrMalformed, image.ErrSize, image.ErrSilent, image.ErrNotAsked, context.Canceled, context.DeadlineExceeded}
	if err == nil || ctx.Err() != nil || slices.ContainsFunc(passing, func(known error) bool { return errors.Is(err, known) }) {
		return content, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
	return []byte{}, nil
}

// readAll reads some things at a time. What is not there is nil, what is malformed
// empty: whoever may push beside an image must not keep all of it from being read.
// After an error there is nothing.
func readAll[T any](ctx context.Context, all []T, read func(context.Context, T) ([]byte, error)) ([][]byte, error) {
	contents := make([][]byte, len(all))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxRequests)
	for i, one := range all {
		group.Go(func() (err error) {
			contents[i], err = read(ctx, one)
			switch {
			case errors.Is(err, image.ErrNotFound):
				return nil
			case errors.Is(err, image.ErrMalformed), errors.Is(err, image.ErrSize):
				contents[i] = []byte{}
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return contents, nil
}

// artifacts joins layers and contents. Each takes its bytes of one place's, since it is
// verified and stored by itself, whatever it shares with others.
func (c *collector) artifacts() []Artifact {
	artifacts, left := make([]Artifact, 0, len(c.layers)), int64(maxTotal)
	for _, l := range c.layers {
		a := Artifact{Kind: l.kind, Origin: l.origin, Content: c.blobs[l.digest], Annotations: l.annotations}
		switch {
		case a.Content == nil:
			c.skip("%s: its content could not be had", l.origin)
		case a.bytes() > left:
			c.skipOverfull(l)
		default:
			left -= a.bytes()
			artifacts = append(artifacts, a)
		}
	}
	return inOrder(artifacts)
}

// readAnnotations keeps the annotations that cosign puts its material in. A bundle has
// all of it in itself.
func readAnnotations(kind ArtifactKind, all map[string]string) map[string]string {
	if kind == Bundle {
		return nil
	}
	var kept map[string]string
	for _, key := range []string{
		static.SignatureAnnotationKey, static.CertificateAnnotationKey, static.ChainAnnotationKey,
		static.BundleAnnotationKey, static.RFC3161TimestampAnnotationKey,
	} {
		if v, ok := all[key]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = v
		}
	}
	return kept
}

// tooLong names an annotation that is longer than is read; empty where none is.
func tooLong(annotations map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if len(annotations[key]) > maxAnnotation {
			return key
		}
	}
	return ""
}

// SignatureTag is the tag under which cosign keeps signatures of a digest.
func SignatureTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".sig" }

// AttestationTag is the tag under which cosign keeps attestations of a digest.
func AttestationTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".att" }
