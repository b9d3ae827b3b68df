package signing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/bytecode/image"
)

// What Collect takes in at most for one digest, from the referrers and from the
// tags each. Whoever can push to the repository can write what is read here, so
// all of it is bounded; what is beyond a bound is skipped and said so.
const (
	// maxReferrers is how many referring manifests are read.
	maxReferrers = 64
	// maxLayers is how many signatures of one manifest are read.
	maxLayers = 64
	// maxBlob is the size of one signature, attestation or bundle, in bytes.
	maxBlob = 4 << 20
	// maxTotal is the size of them all, in bytes.
	maxTotal = 8 << 20
	// maxRequests is how many requests are under way at once.
	maxRequests = 4
	// maxSkipped is how many reasons are kept.
	maxSkipped = 32
)

// bundlePrefix begins the media type of every version of a sigstore bundle.
const bundlePrefix = "application/vnd.dev.sigstore.bundle"

// Source is where signatures are read from and written to; *image.Client is
// one. The client that resolved the image spares the ping and the token.
type Source interface {
	// Attachments opens what belongs to one image.
	Attachments(r image.Resolved) (*image.Attachments, error)
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
	// Annotations are those of the layer that cosign reads.
	Annotations map[string]string `json:"annotations,omitempty"`
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
}

// Hash identifies what was collected: sha256:… over its JSON.
func (c Collected) Hash() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode collected signatures: %w", err)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Collect reads everything about r.Digest that might be a signature or an
// attestation: OCI referrers, or the tag that stands in for them where the
// registry lacks the API, and cosign's tags sha256-….sig and .att, all at once.
// The media type of a referrer is not asked: registries report some bundles as
// empty. It verifies nothing.
//
// One image with one signature by cosign's defaults takes 4 requests, ping
// included, and 5 where the referrers API is missing; every bundle takes 2
// more, and so does the first payload that carries annotations take 1. How many
// signers there are does not matter.
//
// The error means that it could not be told what there is (the registry did not
// answer, or answered garbage), and is of a kind of package image. What is missing is no error, and what is
// malformed or too big is in Skipped. The time limit is ctx's.
func Collect(ctx context.Context, source Source, r image.Resolved) (Collected, error) {
	places := []place{(*collector).readReferrers, (*collector).readTags}
	found := make([]Collected, len(places))
	group, ctx := errgroup.WithContext(ctx)
	for i, read := range places {
		group.Go(func() (err error) {
			found[i], err = gather(ctx, source, r, read)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return Collected{}, err
	}
	return join(found[0], found[1]), nil
}

// CollectUntil is Collect that reads the referrers first, and leaves cosign's
// tags alone where enough says so of what they hold. An image with one bundle
// then takes 4 requests, 5 where the referrers API is missing, and one with a
// legacy signature what it takes anyway, one round trip later.
//
// What comes back may be Partial: it shows who signed, and not that nobody else
// did. Whoever would refuse because of what is missing completes it first.
func CollectUntil(ctx context.Context, source Source, r image.Resolved, enough func(Collected) (bool, error)) (Collected, error) {
	part, err := gather(ctx, source, r, (*collector).readReferrers)
	if err != nil {
		return Collected{}, err
	}
	part.Partial = true
	stop, err := enough(part)
	if err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	if stop {
		return part, nil
	}
	return Complete(ctx, source, r, part)
}

// Complete adds what CollectUntil left out: 2 requests, and one for every
// attestation and for every payload with annotations. What is not Partial comes
// back as it is.
func Complete(ctx context.Context, source Source, r image.Resolved, part Collected) (Collected, error) {
	if !part.Partial {
		return part, nil
	}
	if part.Digest != r.Digest {
		return Collected{}, fmt.Errorf("collect signatures of %s: what was collected so far is about %s", r.Reference, part.Digest)
	}
	rest, err := gather(ctx, source, r, (*collector).readTags)
	if err != nil {
		return Collected{}, err
	}
	return join(part, rest), nil
}

// place reads one of the places where signatures are kept.
type place func(*collector, context.Context) error

// gather reads one place.
func gather(ctx context.Context, source Source, r image.Resolved, read place) (Collected, error) {
	digest, err := v1.NewHash(r.Digest)
	if err != nil || digest.Algorithm != "sha256" {
		return Collected{}, fmt.Errorf("collect signatures of %s: digest %q is not sha256:…: resolve the reference first", r.Reference, r.Digest)
	}
	from, err := source.Attachments(r)
	if err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	c := &collector{from: from, digest: digest, blobs: map[v1.Hash][]byte{}}
	c.know(guessPayload(r))
	if err := read(c, ctx); err != nil {
		return Collected{}, fmt.Errorf("collect signatures of %s: %w", r.Reference, err)
	}
	return Collected{Digest: r.Digest, Artifacts: c.artifacts(), Skipped: c.skipped}, nil
}

// join puts together what both places hold.
func join(a, b Collected) Collected {
	return Collected{
		Digest:    a.Digest,
		Artifacts: inOrder(slices.Concat(a.Artifacts, b.Artifacts)),
		Skipped:   slices.Concat(a.Skipped, b.Skipped),
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
	desc   v1.Descriptor
}

// collector gathers from one place in three steps: which manifests, which layers, their bytes.
type collector struct {
	from    *image.Attachments
	digest  v1.Hash
	layers  []layer
	blobs   map[v1.Hash][]byte
	skipped []string
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

// readTags reads what stands under cosign's own tags.
func (c *collector) readTags(ctx context.Context) error {
	tags := []string{SignatureTag(c.digest), AttestationTag(c.digest)}
	manifests, err := readAll(ctx, tags, c.from.Tagged)
	if err != nil {
		return err
	}
	for i, tag := range tags {
		c.read("tag "+tag, manifests[i], false)
	}
	return c.fetch(ctx)
}

// readReferrers reads what refers to the image.
func (c *collector) readReferrers(ctx context.Context) error {
	all, err := c.from.Referrers(ctx)
	if err != nil {
		return err
	}
	known := map[v1.Hash]bool{}
	var referrers []v1.Hash
	for _, d := range all {
		if d.Digest.Algorithm == "sha256" && !known[d.Digest] {
			known[d.Digest] = true
			referrers = append(referrers, d.Digest)
		}
	}
	if len(referrers) > maxReferrers {
		c.skip("%d of %d referrers: no more than %d are read", len(referrers)-maxReferrers, len(referrers), maxReferrers)
		referrers = referrers[:maxReferrers]
	}
	manifests, err := readAll(ctx, referrers, c.from.Manifest)
	if err != nil {
		return err
	}
	for i, manifest := range manifests {
		c.read("referrer "+referrers[i].String(), manifest, true)
	}
	return c.fetch(ctx)
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
		m.Layers = m.Layers[:maxLayers]
	}
	for i, d := range m.Layers {
		kind := kindOf(d.MediaType)
		if kind == "" {
			continue
		}
		where := origin
		if len(m.Layers) > 1 {
			where = fmt.Sprintf("%s, layer %d", origin, i)
		}
		switch {
		case d.Digest.Algorithm != "sha256":
			c.skip("%s: its digest is not sha256", where)
		case d.Size < 0 || d.Size > maxBlob:
			c.skip("%s: %d bytes, and no more than %d are read", where, d.Size, maxBlob)
		default:
			c.layers = append(c.layers, layer{kind: kind, origin: where, desc: d})
		}
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

// fetch reads the layers, each content once.
func (c *collector) fetch(ctx context.Context) error {
	var wanted []v1.Descriptor
	asked := map[v1.Hash]bool{}
	total := int64(0)
	for _, l := range c.layers {
		if c.blobs[l.desc.Digest] != nil || asked[l.desc.Digest] {
			continue
		}
		if total += l.desc.Size; total > maxTotal {
			c.skip("%s and what follows: no more than %d bytes are read", l.origin, maxTotal)
			break
		}
		asked[l.desc.Digest] = true
		wanted = append(wanted, l.desc)
	}
	contents, err := readAll(ctx, wanted, c.from.Blob)
	for i, content := range contents {
		if len(content) > 0 {
			c.blobs[wanted[i].Digest] = content
		}
	}
	return err
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
			case errors.Is(err, image.ErrMalformed):
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

// artifacts joins layers and contents.
func (c *collector) artifacts() []Artifact {
	artifacts := make([]Artifact, 0, len(c.layers))
	for _, l := range c.layers {
		content := c.blobs[l.desc.Digest]
		if content == nil {
			c.skip("%s: its content could not be had", l.origin)
			continue
		}
		artifacts = append(artifacts, Artifact{
			Kind: l.kind, Origin: l.origin, Content: content, Annotations: readAnnotations(l.desc.Annotations),
		})
	}
	return inOrder(artifacts)
}

// readAnnotations keeps the annotations that cosign puts its material in.
func readAnnotations(all map[string]string) map[string]string {
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

// SignatureTag is the tag under which cosign keeps signatures of a digest.
func SignatureTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".sig" }

// AttestationTag is the tag under which cosign keeps attestations of a digest.
func AttestationTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".att" }
