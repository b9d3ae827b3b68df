package collect

import (
	"cmp"
	"context"
	"crypto/sha256"
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
	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
)

// layer is one layer that looks like a signature, before it is read.
type layer struct {
	kind   Kind
	origin string
	// manifest is the digest of the manifest that names it.
	manifest v1.Hash
	digest   v1.Hash
	// size is what its descriptor says.
	size        int64
	annotations map[string]string
	// behind is how many layers of its manifest come before it. It is below 0 in a manifest
	// that held what counted before, and -MaxLayers-1 at most if the layer itself counted.
	behind int
}

// bytes is what it takes of the memory by its descriptor.
func (l layer) bytes() int64 { return l.size + bytesOf(l.annotations) }

// shares reports whether another layer names the same content by the same size.
func (l layer) shares(other layer) bool { return l.digest == other.digest && l.size == other.size }

// key identifies what a layer says of itself, wherever it was found.
func (l layer) key() layerKey {
	return sha256.Sum256(fmt.Appendf(nil, "%s %s %d %q", l.kind, l.digest, l.size, l.annotations))
}

type layerKey [sha256.Size]byte

func (l layer) descriptor() v1.Descriptor { return v1.Descriptor{Digest: l.digest, Size: l.size} }

// collector gathers from one place in three steps: which manifests, which layers, their bytes.
type collector struct {
	from   *registry.Attachments
	digest v1.Hash
	// repository is the signer's; empty beside the image.
	repository string
	// before are the artifacts of this repository that counted when it was last read.
	before []Artifact
	// counted are their layers. Each content is hashed once, however many layers are compared with it.
	counted map[layerKey]bool
	// manifests are those that were read.
	manifests map[v1.Hash]bool
	// left is how many bytes may be read still.
	left    int64
	layers  []layer
	noted   map[layerKey]bool
	blobs   map[v1.Hash][]byte
	skipped []string
	// overfull is true where more is there than the bytes of one place, truncated is
	// Collected.Truncated.
	overfull  bool
	truncated string
	// failed is why the registry did not hand out one of the manifests or blobs, and withheld
	// says so.
	mu       sync.Mutex
	failed   error
	withheld string
}

func newCollector(from *registry.Attachments, digest v1.Hash, repository string, before []Artifact) *collector {
	c := &collector{
		from: from, digest: digest, repository: repository, left: maxTotal,
		counted: map[layerKey]bool{}, manifests: map[v1.Hash]bool{}, noted: map[layerKey]bool{}, blobs: map[v1.Hash][]byte{},
	}
	for _, a := range before {
		if a.Repository == repository {
			c.before = append(c.before, a)
			if a.Content == nil {
				continue
			}
			digest := c.know(a.Content)
			c.counted[layer{kind: a.Kind, digest: digest, size: int64(len(a.Content)), annotations: a.Annotations}.key()] = true
		}
	}
	return c
}

// know keeps a content that need not be read, and returns its digest.
func (c *collector) know(content []byte) v1.Hash {
	digest := image.Sum(content)
	if content != nil {
		c.blobs[digest] = content
	}
	return digest
}

// origin says where a manifest was found.
func (c *collector) origin(of string) string {
	if c.repository == "" {
		return of
	}
	return of + " in " + c.repository
}

// truncate notes that not all there is was read.
func (c *collector) truncate(format string, args ...any) {
	c.truncated = cmp.Or(c.truncated, fmt.Sprintf(format, args...))
	c.skip(format, args...)
}

func (c *collector) skip(format string, args ...any) {
	if len(c.skipped) < maxSkipped {
		c.skipped = append(c.skipped, fmt.Sprintf(format, args...))
	}
}

// skipOverfull skips a layer since what is there takes more bytes than one place has.
func (c *collector) skipOverfull(l layer) {
	c.overfull = true
	c.truncate("%s: %d bytes, annotations included, and no more than %d are read together", l.origin, l.bytes(), maxTotal)
}

// readTags reads what is under cosign's own tags.
func (c *collector) readTags(ctx context.Context) error {
	tags := []string{SignatureTag(c.digest), AttestationTag(c.digest)}
	manifests, err := readAll(ctx, tags, func(ctx context.Context, tag string) ([]byte, error) {
		raw, err := c.from.Tagged(ctx, tag)
		var full *image.TooManyValuesError
		if errors.As(err, &full) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.truncated = cmp.Or(c.truncated, fmt.Sprintf("%s: it holds more than is read", c.origin("tag "+tag)))
		}
		return c.answer(ctx, "tag "+tag, raw, err)
	})
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		if manifest != nil {
			c.manifests[image.Sum(manifest)] = true
		}
	}
	// A tag that was moved gives a layer which counted before no other manifest.
	if err := c.readBefore(ctx, "manifest", LegacySignature, LegacyAttestation); err != nil {
		return err
	}
	for i, tag := range tags {
		c.read(c.origin("tag "+tag), manifests[i], false)
	}
	return c.fetch(ctx)
}

// readReferrers reads what refers to the image: what counted before first.
func (c *collector) readReferrers(ctx context.Context) error {
	all, more, err := c.from.Referrers(ctx)
	if err != nil {
		return err
	}
	if more {
		c.truncate("the list of referrers: it is longer than is read, and its first %d are", len(all))
	}
	if err := c.readBefore(ctx, "referrer", Bundle); err != nil {
		return err
	}
	if err := c.readListed(ctx, inTurn(all)); err != nil {
		return err
	}
	return c.fetch(ctx)
}

// readBefore reads the manifests that held what counted before, unless they were read
// already: by their digests, since whoever may push can take them out of a list, and can
// move a tag. A list that names one calls it what it is called here: what is collected is the
// same, whichever application knew of it.
func (c *collector) readBefore(ctx context.Context, called string, kinds ...Kind) error {
	var digests []v1.Hash
	for _, a := range c.before {
		digest, err := v1.NewHash(a.Manifest)
		if err == nil && slices.Contains(kinds, a.Kind) && !c.manifests[digest] && !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
	}
	if more := len(digests) - maxReferrers; more > 0 {
		c.truncate("%d of %d manifests that held signatures before: no more than %d are read", more, len(digests), maxReferrers)
		digests = digests[:maxReferrers]
	}
	manifests, err := readAll(ctx, digests, c.manifest)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(manifests, func(m []byte) bool { return m == nil }) {
		if err := c.askForImage(ctx); err != nil {
			return err
		}
	}
	for i, manifest := range manifests {
		if err := ctx.Err(); err != nil {
			return err
		}
		// It is not asked for again by a list.
		c.manifests[digests[i]] = true
		known := len(c.layers)
		c.read(c.origin(called+" "+digests[i].String()), manifest, false)
		for l := range c.layers[known:] {
			c.layers[known+l].behind -= MaxLayers
		}
	}
	return nil
}

// askForImage has a manifest that is not there say nothing where the image is not there either:
// then the registry does not show what it has, or lost it all.
func (c *collector) askForImage(ctx context.Context) error {
	if c.repository != "" {
		return nil
	}
	_, err := c.manifest(ctx, c.digest)
	switch {
	case errors.Is(err, image.ErrNotFound):
		c.withhold("the image", err)
		return nil
	case errors.Is(err, image.ErrMalformed):
		return nil
	}
	return err
}

// readListed reads what a list of referrers names, up to maxReferrers manifests with a
// bundle and maxManifests in all. What says of itself that it is something else is
// never missed.
func (c *collector) readListed(ctx context.Context, listed []referrer) error {
	bundles, count := 0, 0
	for some := range slices.Chunk(listed, chunk) {
		if bundles >= maxReferrers || count >= maxManifests {
			break
		}
		manifests, err := readAll(ctx, some, func(ctx context.Context, r referrer) ([]byte, error) {
			if c.manifests[r.digest] {
				return nil, nil
			}
			return c.manifest(ctx, r.digest)
		})
		if err != nil {
			return err
		}
		for i, manifest := range manifests {
			if err := ctx.Err(); err != nil {
				return err
			}
			if c.read(c.origin("referrer "+some[i].digest.String()), manifest, true) {
				bundles++
			}
		}
		count += len(some)
	}
	unread := slices.DeleteFunc(slices.Clone(listed[min(count, len(listed)):]), func(r referrer) bool { return r.rank == other })
	if len(unread) > 0 {
		c.truncate("%d of %d referrers: no more than %d are read, and no more than %d with a signature", len(unread), len(listed), maxManifests, maxReferrers)
	}
	return nil
}

// manifest reads one manifest; what is too large for one is empty, and so is what the
// registry does not hand out.
func (c *collector) manifest(ctx context.Context, digest v1.Hash) ([]byte, error) {
	raw, err := c.from.Manifest(ctx, digest)
	if errors.Is(err, image.ErrTooLong) {
		return []byte{}, nil
	}
	return c.answer(ctx, "manifest "+digest.String(), raw, err)
}

// rank says how likely a referrer is a signature by its descriptor.
type rank int

const (
	// bundle says of itself that it is one.
	bundle rank = iota
	// untyped says nothing: registries report some bundles as empty.
	untyped
	// other says that it is something else, such as a list of what is in an image.
	other
)

// referrer is one manifest of a list of referrers.
type referrer struct {
	digest v1.Hash
	rank   rank
}

// inTurn lists the manifests to read, each once, by rank. What is longer than any
// manifest of a signature is none.
func inTurn(all []v1.Descriptor) []referrer {
	known := map[v1.Hash]bool{}
	var listed []referrer
	for _, d := range all {
		if d.Digest.Algorithm == "sha256" && !known[d.Digest] && d.Size <= maxManifest {
			known[d.Digest] = true
			listed = append(listed, referrer{d.Digest, rankOf(d)})
		}
	}
	slices.SortStableFunc(listed, func(a, b referrer) int { return cmp.Compare(a.rank, b.rank) })
	return listed
}

func rankOf(d v1.Descriptor) rank {
	switch kind := d.ArtifactType; {
	case strings.HasPrefix(kind, bundlePrefix):
		return bundle
	case kind == "" || kind == emptyType || types.MediaType(kind).IsConfig():
		return untyped
	}
	return other
}

// read notes the layers of a manifest that look like signatures, and reports whether
// there are any. A referrer must say itself what it refers to; a tag's name says it.
func (c *collector) read(origin string, raw []byte, refers bool) (found bool) {
	if raw == nil {
		return false
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		c.skip("%s: it is not a manifest", origin)
		return false
	}
	if refers && (m.Subject == nil || m.Subject.Digest != c.digest) {
		c.skip("%s: its subject is another image", origin)
		return false
	}
	digest := image.Sum(raw)
	c.manifests[digest] = true
	behind, left := 0, 0
	for _, l := range layersOf(m, origin) {
		l.manifest, l.behind = digest, behind
		switch {
		case c.counted[l.key()]:
			l.behind = -MaxLayers - 1
		case behind == MaxLayers:
			left++
			continue
		default:
			behind++
		}
		found = c.add(l) || found
	}
	if left > 0 {
		c.truncate("%s: %d of %d layers: no more than %d are read", origin, left, len(m.Layers), MaxLayers)
	}
	return found
}

// layersOf are the layers of a manifest that look like signatures, the newest first.
func layersOf(m v1.Manifest, origin string) (all []layer) {
	for i, d := range slices.Backward(m.Layers) {
		kind := kindOf(d.MediaType)
		if kind == "" {
			continue
		}
		l := layer{kind: kind, origin: origin, digest: d.Digest, size: d.Size, annotations: readAnnotations(kind, d.Annotations)}
		if len(m.Layers) > 1 {
			l.origin = fmt.Sprintf("%s, layer %d", origin, i)
		}
		all = append(all, l)
	}
	return all
}

// add notes a layer, unless one that is equal was noted, and reports whether it is one
// to read.
func (c *collector) add(l layer) bool {
	key := l.key()
	switch long := tooLong(l.annotations); {
	case l.digest.Algorithm != "sha256":
		c.skip("%s: its digest is not sha256", l.origin)
		return false
	case l.size < 0 || l.size > maxBlob:
		c.skip("%s: %d bytes, and no more than %d are read", l.origin, l.size, maxBlob)
		return false
	case long != "":
		c.skip("%s: its annotation %s has %d bytes, and no more than %d are read", l.origin, long, len(l.annotations[long]), maxAnnotation)
		return false
	case !c.noted[key]:
		c.noted[key] = true
		c.layers = append(c.layers, l)
	}
	return true
}

// kindOf returns the form a layer's media type stands for, or nothing.
func kindOf(t types.MediaType) Kind {
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
		c.truncate("%d of %d layers: no more than %d are read", more, len(c.layers), maxCandidates)
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

// blob reads one blob.
func (c *collector) blob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	content, err := c.from.Blob(ctx, d)
	return c.answer(ctx, "blob "+d.Digest.String(), content, err)
}

// answer is what a registry sent of one thing. Where it answers, and not with it, the others are
// read all the same, and what is missing says nothing; where it is silent, or time is up, nothing is read.
func (c *collector) answer(ctx context.Context, what string, content []byte, err error) ([]byte, error) {
	passing := []error{image.ErrNotFound, image.ErrMalformed, image.ErrSize, image.ErrSilent, image.ErrNotAsked, context.Canceled, context.DeadlineExceeded}
	if err == nil || ctx.Err() != nil || slices.ContainsFunc(passing, func(known error) bool { return errors.Is(err, known) }) {
		return content, err
	}
	c.withhold(what, err)
	return []byte{}, nil
}

// withhold notes that the registry does not hand out something. The words are not the registry's,
// which may differ each time, and it is the same of several, whichever is answered first: what is
// collected is stored anew if it differs.
func (c *collector) withhold(what string, err error) {
	because := image.ErrUnavailable
	for _, kind := range []error{image.ErrUnauthorized, image.ErrTooLong, image.ErrNotFound} {
		if errors.Is(err, kind) {
			because = kind
		}
	}
	text := fmt.Sprintf("the registry does not hand out %s: %v", c.origin(what), because)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil || text < c.withheld {
		c.failed, c.withheld = err, text
	}
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

// collected is all that was gathered.
func (c *collector) collected() Collected {
	artifacts := c.artifacts()
	return Collected{Digest: c.digest.String(), Artifacts: artifacts, Skipped: c.skipped, Truncated: cmp.Or(c.truncated, c.withheld)}
}

// artifacts joins layers and contents. Each takes its bytes of one place's, since it is
// verified and stored by itself, whatever it shares with others.
func (c *collector) artifacts() []Artifact {
	artifacts, left := make([]Artifact, 0, len(c.layers)), int64(maxTotal)
	for _, l := range c.layers {
		a := Artifact{
			Kind: l.kind, Origin: l.origin, Manifest: l.manifest.String(), Repository: c.repository,
			Content: c.blobs[l.digest], Annotations: l.annotations,
		}
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
func readAnnotations(kind Kind, all map[string]string) map[string]string {
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
