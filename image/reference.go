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

// parse splits a reference without asking anybody: Digest is set only where the
// reference names one, Tag everywhere else, but for a layout without tag.
func (c *Client) parse(reference string) (Resolved, error) {
	if dir, ok := strings.CutPrefix(reference, LayoutPrefix); ok {
		return parseLayout(reference, dir)
	}
	if strings.HasPrefix(reference, "/") || strings.HasPrefix(reference, ".") || strings.HasPrefix(reference, "~") {
		return Resolved{}, malformed("parse reference %q: it is a folder: write it as %s%s", reference, LayoutPrefix, reference)
	}
	host, _, _ := strings.Cut(reference, "/")
	insecure := slices.Contains(c.options.InsecureRegistries, host)
	ref, err := name.ParseReference(reference, nameOptions(insecure)...)
	if err != nil {
		return Resolved{}, malformed("parse reference %q: %s: write it as registry/repository:tag or registry/repository@sha256:…, or as oci:DIR", reference, scrub(err.Error()))
	}
	r := Resolved{
		Reference:  reference,
		Registry:   ref.Context().RegistryStr(),
		Repository: ref.Context().RepositoryStr(),
		Insecure:   insecure,
	}
	if err := c.permit(r); err != nil {
		return Resolved{}, err
	}
	if digest, ok := ref.(name.Digest); ok {
		hash, err := parseDigest(digest.DigestStr())
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
		hash, err := parseDigest(rest[i+1:])
		if err != nil {
			return Resolved{}, err
		}
		r.Repository, r.Digest = rest[:i], hash.String()
	} else if i := strings.LastIndex(rest, ":"); i > strings.LastIndex(rest, "/") && tagPattern.MatchString(rest[i+1:]) {
		r.Repository, r.Tag = rest[:i], rest[i+1:]
	}
	if r.Repository == "" {
		return Resolved{}, malformed("parse reference %q: it names no directory: write it as oci:DIR, oci:DIR:TAG or oci:DIR@sha256:…", reference)
	}
	return r, nil
}

// parseDigest accepts only sha256, the digest that signatures and the cache are
// about.
func parseDigest(digest string) (v1.Hash, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return v1.Hash{}, malformed("parse digest %q: %w", digest, err)
	}
	if hash.Algorithm != "sha256" {
		return v1.Hash{}, malformed("parse digest %q: only sha256 is accepted, since signatures are made over it: name the image by its sha256 digest", digest)
	}
	return hash, nil
}

// repository is the registry's side of a resolved reference.
func (r Resolved) repository() (name.Repository, error) {
	repo, err := name.NewRepository(r.Registry+"/"+r.Repository, nameOptions(r.Insecure)...)
	if err != nil {
		return name.Repository{}, malformed("parse repository of %q: %s", r.Reference, scrub(err.Error()))
	}
	return repo, nil
}
