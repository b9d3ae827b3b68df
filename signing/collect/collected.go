package collect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
)

// Source is where signatures are read from and written to; *registry.Client is
// one. The client that resolved the image spares the ping and the token.
type Source interface {
	// Attachments opens what belongs to one image.
	Attachments(r image.Resolved) (*registry.Attachments, error)
	// Elsewhere opens what belongs to one digest in a repository that an admin names.
	Elsewhere(repository, digest string) (*registry.Attachments, error)
}

// Kind says in which form a signature or attestation was stored.
type Kind string

// The forms of an Artifact.
const (
	// LegacySignature is a layer of cosign's tag sha256-….sig: a simple signing
	// payload, with signature and certificate in annotations.
	LegacySignature Kind = "signature"
	// LegacyAttestation is a layer of cosign's tag sha256-….att: a DSSE
	// envelope with an in-toto statement.
	LegacyAttestation Kind = "attestation"
	// Bundle is a sigstore bundle, which may hold either.
	Bundle Kind = "bundle"
)

// Artifact is one thing that claims to be about a digest. Nothing in it is
// verified.
type Artifact struct {
	Kind Kind `json:"kind"`
	// Origin says where it was found, for a person to read.
	Origin string `json:"origin"`
	// Manifest is the digest of the manifest that names it, as sha256:…, and Repository
	// the signer's in which that is; empty beside the image.
	Manifest   string `json:"manifest,omitempty"`
	Repository string `json:"repository,omitempty"`
	// Content is the payload, envelope or bundle.
	Content []byte `json:"content"`
	// Annotations are those of the layer that cosign reads; a bundle has none.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// bytes is how much of the memory an artifact takes, whatever it shares with others.
func (a Artifact) bytes() int64 {
	return int64(len(a.Content)+len(a.Origin)+len(a.Manifest)+len(a.Repository)) + bytesOf(a.Annotations)
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
	// Truncated says why there may be more than was read, where a bound on all of it was
	// met: what is here counts, and what is missing from here says nothing.
	Truncated string `json:"truncated,omitempty"`
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

// BlobError says that a registry did not hand out a signature that it lists, or the manifest
// of one, though it answered: it says nothing about whether the registry can be reached. With it
// comes what else was collected, as truncated.
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
