package image

import (
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// tagPattern is the grammar of tags in the OCI distribution specification.
var tagPattern = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)

// Parse splits a reference, of which insecure registries may be spoken to over plain
// HTTP. Digest is set only where the reference names one, Tag everywhere else, but for
// a layout without tag.
func Parse(reference string, insecure []string) (Resolved, error) {
	if dir, ok := strings.CutPrefix(reference, LayoutPrefix); ok {
		return parseLayout(reference, dir)
	}
	if strings.HasPrefix(reference, "/") || strings.HasPrefix(reference, ".") || strings.HasPrefix(reference, "~") {
		return Resolved{}, Malformed("parse reference %q: it is a folder: write it as %s%s", reference, LayoutPrefix, reference)
	}
	host, _, _ := strings.Cut(reference, "/")
	plain := slices.Contains(insecure, host)
	ref, err := name.ParseReference(reference, nameOptions(plain)...)
	if err != nil {
		return Resolved{}, Malformed("parse reference %q: %s: write it as registry/repository:tag or registry/repository@sha256:…, or as oci:DIR",
			reference, Scrub(err.Error()))
	}
	r := Resolved{
		Reference:  reference,
		Registry:   ref.Context().RegistryStr(),
		Repository: ref.Context().RepositoryStr(),
		Insecure:   plain,
	}
	if digest, ok := ref.(name.Digest); ok {
		hash, err := ParseDigest(digest.DigestStr())
		if err != nil {
			return Resolved{}, err
		}
		r.Digest = hash.String()
		return r, nil
	}
	r.Tag = ref.Identifier()
	return r, nil
}

func nameOptions(insecure bool) []name.Option {
	if insecure {
		return []name.Option{name.Insecure}
	}
	return nil
}

func parseLayout(reference, rest string) (Resolved, error) {
	r := Resolved{Reference: reference, Repository: rest}
	if i := strings.LastIndex(rest, "@"); i >= 0 && strings.Contains(rest[i:], ":") {
		hash, err := ParseDigest(rest[i+1:])
		if err != nil {
			return Resolved{}, err
		}
		r.Repository, r.Digest = rest[:i], hash.String()
	} else if i := strings.LastIndex(rest, ":"); i > strings.LastIndex(rest, "/") && tagPattern.MatchString(rest[i+1:]) {
		r.Repository, r.Tag = rest[:i], rest[i+1:]
	}
	if r.Repository == "" {
		return Resolved{}, Malformed("parse reference %q: it names no directory: write it as oci:DIR, oci:DIR:TAG or oci:DIR@sha256:…", reference)
	}
	return r, nil
}

// ParseDigest accepts only sha256, the digest that signatures and the cache are
// about.
func ParseDigest(digest string) (v1.Hash, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return v1.Hash{}, Malformed("parse digest %q: %w", digest, err)
	}
	if hash.Algorithm != "sha256" {
		return v1.Hash{}, Malformed("parse digest %q: only sha256 is accepted, since signatures are made over it: name the image by its sha256 digest", digest)
	}
	return hash, nil
}

// RepositoryName is the registry's side of a resolved reference.
func (r Resolved) RepositoryName() (name.Repository, error) {
	repo, err := name.NewRepository(r.Registry+"/"+r.Repository, nameOptions(r.Insecure)...)
	if err != nil {
		return name.Repository{}, Malformed("parse repository of %q: %s", r.Reference, Scrub(err.Error()))
	}
	return repo, nil
}

// Named is what a reference says by itself: Resolve's answer, without a digest
// where it names a tag alone.
func Named(reference string) (Resolved, error) { return Parse(reference, nil) }

// RegistryOf returns the registry of a reference, as Resolved.Registry has it;
// empty for a layout on disk and for a reference that is malformed.
func RegistryOf(reference string) string {
	r, err := Named(reference)
	if err != nil {
		return ""
	}
	return r.Registry
}
