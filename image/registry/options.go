// Package registry moves images between registries, OCI layouts and a cache on disk.
//
// It owns what a client accepts from registries and how much memory that takes. It knows
// no definition and verifies no signature.
package registry

import (
	"cmp"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/recent"
)

// Options say how a Client reaches registries and what it accepts from them.
// The zero value is safe and useful.
type Options struct {
	// CacheDir is the folder of the content-addressed cache, made when it is
	// missing. Empty means no cache: every Pull asks the registry.
	CacheDir string
	// CacheBytes is what the cache holds at most: beyond it, what is pulled is not
	// kept until Prune has made room. Zero means no bound.
	CacheBytes int64
	// Keychain gives credentials. Nil means authn.DefaultKeychain: Docker's and
	// Podman's configuration files and the credential helpers they name.
	Keychain authn.Keychain
	// Transport is used for all requests. Nil means a clone of
	// go-containerregistry's, which honours the proxy environment variables.
	Transport http.RoundTripper
	// Platform picks the manifest of a multi-arch index. Zero means linux and
	// the architecture of this binary.
	Platform v1.Platform
	// ManifestBytes bounds a manifest, an index, a config and any answer that is
	// not a blob. Zero means 4 MiB, the size the OCI distribution specification
	// asks registries to accept.
	ManifestBytes int64
	// LayerBytes bounds a layer as stored. Zero means 64 MiB.
	LayerBytes int64
	// ObjectBytes bounds the expanded layer and so the object. Zero means 64 MiB.
	ObjectBytes int64
	// LayersBytes bounds together the layers of more than a MiB that are read from
	// registries at once; a third of it is the most that one registry, or one
	// tenant, takes. Zero means no bound.
	LayersBytes int64
	// Objects is how many objects may be open at once: expanded, and not yet
	// released. Zero means no bound.
	Objects int
	// IndexEntries bounds the manifests of an index and the referrers of a
	// digest. Zero means 256.
	IndexEntries int
	// Silence is how long a registry may send nothing, before the answer or in
	// the middle of it. Zero means 15 s.
	Silence time.Duration
	// Timeout bounds one call of Resolve, Pull, Push or Copy. Zero means 2 min.
	Timeout time.Duration
	// Attempts is how often a GET or HEAD is tried before a registry counts as
	// unavailable; waits never outlast the context. Zero means 3.
	Attempts int
	// Backoff is the wait before the second attempt; it doubles with each
	// further one. Zero means 500 ms.
	Backoff time.Duration
	// InsecureRegistries are hosts, with port where there is one, that may be
	// spoken to over plain HTTP. Loopback addresses and localhost always may.
	InsecureRegistries []string
	// AllowedRegistries are the registries that may be named, as host, host:port,
	// host:* for every port, or host/prefix of the repository; *.example.com is every name below a domain, and
	// AnyPublic every registry. Before anything is dialled any other is rejected
	// with ErrNotAllowed. A registry that stands there by name, or in
	// InsecureRegistries, may be at any address; what AnyPublic allows, and what a
	// registry sends on to, at a public one alone, which is checked when it is
	// dialled, unless a proxy dials. Nil means every registry at every address: it is for
	// who names the images themselves. A Transport of one's own does its own dialling.
	AllowedRegistries []string
	// Unreachable is called with the reason why a registry could not be reached. Texts of errors then do not name it, so that
	// their readers learn nothing of the network; image.WithheldCause does. Nil means that texts name it.
	Unreachable func(registry string, cause error)
	// Answered is told the status of each answer of a registry, 0 where there was
	// none. Nil means that nobody counts.
	Answered func(status int)
	// UserAgent goes before go-containerregistry's own. Empty means skep.
	UserAgent string
}

const (
	mib = 1 << 20

	defaultManifestBytes = 4 * mib
	defaultLayerBytes    = 64 * mib
	defaultObjectBytes   = 64 * mib
	defaultIndexEntries  = 256
	defaultSilence       = 15 * time.Second
	defaultTimeout       = 2 * time.Minute
	defaultAttempts      = 3
	defaultBackoff       = 500 * time.Millisecond

	// headerBytes bounds the header of an answer, which may have a field in every
	// six of its bytes. Go takes 10 MiB.
	headerBytes = 64 << 10
)

// ForInspection returns the options with bounds for images that a gate inspects: objects
// of up to 16 MiB, since bytecode.Inspect reads no larger ones, and two of them open at a
// time. Whoever may write a definition names what is read.
func (o Options) ForInspection() Options {
	o.ManifestBytes, o.LayerBytes, o.ObjectBytes = mib, 18*mib, 16*mib
	o.LayersBytes, o.Objects = 64*mib, 2
	return o
}

func (o Options) withDefaults() Options {
	o.ManifestBytes = cmp.Or(o.ManifestBytes, defaultManifestBytes)
	o.LayerBytes = cmp.Or(o.LayerBytes, defaultLayerBytes)
	o.ObjectBytes = cmp.Or(o.ObjectBytes, defaultObjectBytes)
	o.IndexEntries = cmp.Or(o.IndexEntries, defaultIndexEntries)
	o.Silence = cmp.Or(o.Silence, defaultSilence)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Attempts = cmp.Or(o.Attempts, defaultAttempts)
	o.Backoff = cmp.Or(o.Backoff, defaultBackoff)
	o.UserAgent = cmp.Or(o.UserAgent, "skep")
	o.Platform.OS = cmp.Or(o.Platform.OS, "linux")
	o.Platform.Architecture = cmp.Or(o.Platform.Architecture, runtime.GOARCH)
	if o.Answered == nil {
		o.Answered = func(int) {}
	}
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport
		if shared, ok := remote.DefaultTransport.(*http.Transport); ok {
			own := shared.Clone()
			own.MaxResponseHeaderBytes = headerBytes
			o.Transport = own
		}
	}
	return o
}

func (o Options) check() error {
	for name, value := range map[string]int64{
		"ManifestBytes": o.ManifestBytes, "LayerBytes": o.LayerBytes, "CacheBytes": o.CacheBytes, "ObjectBytes": o.ObjectBytes,
		"LayersBytes": o.LayersBytes, "Objects": int64(o.Objects),
		"IndexEntries": int64(o.IndexEntries), "Silence": int64(o.Silence), "Timeout": int64(o.Timeout),
		"Attempts": int64(o.Attempts), "Backoff": int64(o.Backoff),
	} {
		if value < 0 {
			return fmt.Errorf("check option %s: %d is negative", name, value)
		}
	}
	return nil
}

// Client reads and writes images. It is safe for concurrent use; processes may
// share one cache directory.
type Client struct {
	options   Options
	allowed   *transport.Allowed
	pullers   *pullers
	pusher    *remote.Pusher
	cache     *disk.Cache
	budget    *budget
	malformed *recent.Cache[string]
	secrets   *transport.Secrets
	// described are images that were read, for its platform.
	described *recent.Cache[described]
	// tenant is whom it reads for; empty where that is nobody in particular.
	tenant string
}

// NewClient makes a client. It fails on negative limits and when the cache
// directory cannot be made.
func NewClient(options Options) (*Client, error) {
	if err := options.check(); err != nil {
		return nil, err
	}
	names, err := transport.ParseAllowed(options.AllowedRegistries, options.InsecureRegistries)
	if err != nil {
		return nil, err
	}
	o := options.withDefaults()
	if own, ok := o.Transport.(*http.Transport); ok && options.Transport == nil {
		transport.Guard(own, names)
	}
	c := &Client{options: o, allowed: names, budget: newBudget(o), malformed: newMalformed(), secrets: &transport.Secrets{}, described: newDescriptions()}
	how := []remote.Option{
		remote.WithAuthFromKeychain(o.Keychain),
		remote.WithTransport(newTransport(o, names, c.secrets)),
		remote.WithUserAgent(o.UserAgent),
		remote.WithPlatform(o.Platform),
		// The transport retries by itself, and minds the context while it waits.
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}),
		remote.WithRetryStatusCodes(),
	}
	if c.pullers, err = newPullers(how); err != nil {
		return nil, fmt.Errorf("make puller: %w", err)
	}
	if c.pusher, err = remote.NewPusher(how...); err != nil {
		return nil, fmt.Errorf("make pusher: %w", err)
	}
	if o.CacheDir != "" {
		c.cache, err = disk.OpenCache(disk.CacheOptions{Dir: o.CacheDir, MaxBytes: o.CacheBytes, ManifestBytes: o.ManifestBytes, Writing: o.Timeout})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// newTransport is the way to registries under the options.
func newTransport(o Options, a *transport.Allowed, s *transport.Secrets) *transport.Bounded {
	return &transport.Bounded{
		Inner: o.Transport, Answered: o.Answered, Silence: o.Silence, Attempts: o.Attempts, Backoff: o.Backoff,
		ManifestBytes: o.ManifestBytes, LayerBytes: o.LayerBytes, Insecure: o.InsecureRegistries, Allowed: a, Secrets: s,
	}
}

// WithKeychain is the same client with other credentials, and connections and tokens of
// its own making. Cache and budget are shared.
func (c *Client) WithKeychain(k authn.Keychain) (*Client, error) {
	o := c.options
	o.Keychain, o.CacheDir = k, ""
	other, err := NewClient(o)
	if err == nil {
		other.cache, other.budget, other.malformed, other.described = c.cache, c.budget, c.malformed, c.described
	}
	return other, err
}

// For is the same client, reading for a tenant.
func (c *Client) For(tenant string) *Client {
	other := *c
	other.tenant = tenant
	return &other
}

// Cache is the client's cache; nil without one.
func (c *Client) Cache() *disk.Cache { return c.cache }

// Keychain gives the client's credentials.
func (c *Client) Keychain() authn.Keychain { return c.options.Keychain }
