package transport

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/skep-dev/skep/image"
)

// AnyPublic is the pattern of Options.AllowedRegistries that allows every registry
// at a public address.
const AnyPublic = "*"

// Allowed says which registries may be named, and which of them are trusted to be
// at an address that is not public. Nil allows every one everywhere.
type Allowed struct {
	// public is that every registry at a public address is allowed.
	public bool
	named  []namedRegistry
}

// namedRegistry is one pattern: host[:port][/prefix], where * is every port.
type namedRegistry struct {
	// host has a port where the pattern has one, and begins with "*." where every
	// name below a domain is meant.
	host string
	// prefix begins the repositories; empty means all of them.
	prefix string
}

// patternShape is that of a pattern, AnyPublic aside.
var patternShape = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9][a-zA-Z0-9.-]*|\[[0-9a-fA-F:]+\])(:[0-9]+|:\*)?(/[a-z0-9._/-]+)?$`)

// ParseAllowed reads patterns; insecure registries are named by being listed.
func ParseAllowed(patterns, insecure []string) (*Allowed, error) {
	if patterns == nil {
		return nil, nil //nolint:nilnil // nothing is restricted
	}
	a := &Allowed{}
	for _, p := range slices.Concat(patterns, insecure) {
		if p == AnyPublic {
			a.public = true
			continue
		}
		if !patternShape.MatchString(p) {
			return nil, fmt.Errorf("read allowed registry %q: write it as host, host:port, host:* or host/prefix, without a scheme; * is every public one", p)
		}
		host, prefix, _ := strings.Cut(p, "/")
		if r, err := name.NewRegistry(host); err == nil {
			host = r.RegistryStr() // docker.io is index.docker.io
		}
		a.named = append(a.named, namedRegistry{host: strings.ToLower(host), prefix: strings.Trim(prefix, "/")})
	}
	return a, nil
}

// Repository reports whether a repository of a registry may be named.
func (a *Allowed) Repository(registry, repository string) bool {
	if a == nil {
		return true
	}
	registry = strings.ToLower(registry)
	for _, n := range a.named {
		if n.isHost(registry) && (n.prefix == "" || repository == n.prefix || strings.HasPrefix(repository, n.prefix+"/")) {
			return true
		}
	}
	return a.public && a.publicHost(registry)
}

// NotAllowedError says why a registry, or a repository in it, is not allowed. It is of the
// kind ErrNotAllowed, and takes its place where errors say their cause: where
// Options.Unreachable is nil.
type NotAllowedError struct {
	Registry string
	// Pattern is what allows it, listed among Options.AllowedRegistries.
	Pattern string
	// why completes "registry R is not allowed: ".
	why string
}

// Error implements error.
func (e *NotAllowedError) Error() string {
	return "registry " + e.Registry + " is not allowed: " + e.why
}

// Unwrap is the kind.
func (e *NotAllowedError) Unwrap() error { return image.ErrNotAllowed }

// Reject says why a repository that may not be named may not.
func (a *Allowed) Reject(registry, repository string) *NotAllowedError {
	e := &NotAllowedError{Registry: registry, Pattern: registry}
	switch {
	case a.trusted(registry):
		e.Pattern += "/" + repository
		e.why = "it is listed with other repositories than " + repository
	case a.public:
		e.why = addressKind(registry) + ", and one that is not listed may be at a public address alone"
	default:
		e.why = "it is not listed"
	}
	return e
}

// addressKind says of a host:port that is not public where it is, as far as its name says.
func addressKind(host string) string {
	host = bareHost(host)
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host + " is a name of this machine or of an internal network"
	}
	return host + " is " + kindOfAddress(address)
}

// kindOfAddress names the kind of an address that is not public.
func kindOfAddress(a netip.Addr) string {
	switch a = a.Unmap(); {
	case a.IsLoopback():
		return "a loopback address"
	case a.IsPrivate():
		return "a private address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsUnspecified():
		return "an unspecified address"
	}
	return "a reserved address"
}

// bareHost is a host:port in lower case, without port, brackets and final dot.
func bareHost(host string) string {
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// host reports whether a host:port may be asked at all: a named one, or one whose
// name does not already tell that it is not public. Registries send on to hosts that
// nobody named, such as those of their blobs and tokens.
func (a *Allowed) host(host string) bool {
	return a.trusted(host) || a.publicHost(host)
}

// trusted reports whether a host:port may be asked wherever it is: it is named, or
// nothing is restricted.
func (a *Allowed) trusted(host string) bool {
	host = strings.ToLower(host)
	return a == nil || slices.ContainsFunc(a.named, func(n namedRegistry) bool { return n.isHost(host) })
}

// publicHost reports whether a name may be one of a public address: which address
// it has is known when it is dialled.
func (a *Allowed) publicHost(host string) bool {
	host = bareHost(host)
	if address, err := netip.ParseAddr(host); err == nil {
		return isPublic(address)
	}
	inside := []string{"localhost", "svc", "cluster.local", "internal", "local"}
	return !slices.ContainsFunc(inside, func(s string) bool { return host == s || strings.HasSuffix(host, "."+s) })
}

// isHost compares a host, with its port where it has one that is not its scheme's
// own.
func (n namedRegistry) isHost(host string) bool {
	if bare, every := strings.CutSuffix(n.host, ":*"); every {
		if without, _, err := net.SplitHostPort(host); err == nil {
			host = without
		}
		return namedRegistry{host: bare}.isHost(host)
	}
	for _, usual := range []string{":443", ":80"} {
		if bare, cut := strings.CutSuffix(host, usual); cut && n.isHost(bare) {
			return true
		}
	}
	if domain, below := strings.CutPrefix(n.host, "*"); below {
		return strings.HasSuffix(host, domain)
	}
	return host == n.host
}

// nowhere are the networks beside those that netip knows where no registry of the
// internet is: shared address space (RFC 6598), "this network", protocol
// assignments, benchmarks, reserved ones, translations of IPv4 addresses, and
// Azure's metadata.
func nowhere() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range []string{
		"100.64.0.0/10", "0.0.0.0/8", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "168.63.129.16/32",
		"64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10", "::/96",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// isPublic reports whether an address is one of the internet: not of the machine, its
// link, a private network or a cluster.
func isPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(nowhere(), func(p netip.Prefix) bool { return p.Contains(a) })
}
