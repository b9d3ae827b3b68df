// Package access decides which tenant may read which image.
//
// It owns what each tenant has shown a right to, and when. It reads through one client of
// package registry, whose cache knows no tenants.
package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/image/registry"
)

// Shared lets tenants that may not all read the same use one Client. The
// Client's cache goes by digest and knows no owners; a Reader gets out of it
// what its tenant has shown a right to, by two things:
//
// A repository is believed to hold an image only once every byte of it came from
// there. Whoever runs a registry can have it answer to any digest.
//
// A tenant may read a repository's image only with credentials that the
// registry took: some of its own, lately, or the Client's, which are everybody's.
type Shared struct {
	own     *registry.Client
	options SharedOptions
	salt    [sha256.Size]byte

	mu      sync.Mutex
	tenants map[string]*tenant
	down    map[string]time.Time
}

// SharedOptions say how long a right to read is believed. The zero value is
// useful.
type SharedOptions struct {
	// FreshFor is how long after credentials were taken the registry is not asked
	// again. Zero means ten minutes.
	FreshFor time.Duration
	// StaleFor is how long that still holds while the registry is out of reach.
	// Zero means 24 hours.
	StaleFor time.Duration
	// Recall is an image that another Shared handed on, and that may be believed;
	// false where there is none. It is asked before a registry is. Nil means that
	// nothing is handed on.
	Recall func(context.Context, image.Resolved) (Remembered, bool)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// What is remembered at most: tenants, rights of one tenant, and registries out
// of reach. A tenant that brings ever new credentials forgets its own rights and
// nobody else's.
const (
	maxTenants = 1024
	maxRights  = 128
	maxDown    = 256
	// spared is how long a registry out of reach is not asked for what is known;
	// shortly is how long it is waited for where something is known.
	spared  = 30 * time.Second
	shortly = 3 * time.Second
)

// tenant is what one tenant has shown a right to, and when.
type tenant struct {
	rights map[right]time.Time
	used   time.Time
}

// right is what credentials were taken for.
type right struct {
	// credentials is a keyed hash of what was shown to the registry.
	credentials [sha256.Size]byte
	image       string
}

// NewShared shares a client whose own credentials are everybody's.
func NewShared(own *registry.Client, o SharedOptions) *Shared {
	o.FreshFor = cmp.Or(o.FreshFor, 10*time.Minute)
	o.StaleFor = cmp.Or(o.StaleFor, 24*time.Hour)
	o.Now = clock.OrSystem(o.Now)
	s := &Shared{own: own, options: o, tenants: map[string]*tenant{}, down: map[string]time.Time{}}
	_, _ = rand.Read(s.salt[:])
	return s
}

// right is that to read an image with credentials.
func (s *Shared) right(r image.Resolved, a *authn.AuthConfig) (right, error) {
	// AuthConfig's own JSON is Docker's, which leaves some of it out.
	type whole authn.AuthConfig
	shown, err := json.Marshal((*whole)(a)) //nolint:gosec // it is hashed and goes nowhere
	if err != nil {
		return right{}, errors.New("hash credentials: they are none")
	}
	mac := hmac.New(sha256.New, s.salt[:])
	_, _ = mac.Write(shown)
	return right{credentials: [sha256.Size]byte(mac.Sum(nil)), image: r.Registry + "/" + r.Repository + "@" + r.Digest}, nil
}

// age is how long ago a tenant showed a right; false where it never did.
func (s *Shared) age(name string, of right) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.tenants[name]
	if p == nil {
		return 0, false
	}
	p.used = s.options.Now()
	at, ok := p.rights[of]
	// A clock that was set back makes nothing fresh.
	if age := p.used.Sub(at); ok && age >= 0 && age < s.options.StaleFor {
		return age, true
	}
	return 0, false
}

// note keeps that credentials of a tenant were taken, or that they were not.
func (s *Shared) note(name string, of right, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Now()
	p := s.tenants[name]
	if p == nil {
		makeRoom(s.tenants, maxTenants, func(p *tenant) time.Time { return p.used })
		p = &tenant{rights: map[right]time.Time{}}
		s.tenants[name] = p
	}
	p.used = now
	delete(p.rights, of)
	if taken {
		makeRoom(p.rights, maxRights, func(at time.Time) time.Time { return at })
		p.rights[of] = now
	}
}

// away reports whether a registry was out of reach a moment ago.
func (s *Shared) away(registry string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.down[registry]
	return ok && s.options.Now().Sub(since) < spared
}

func (s *Shared) noteAway(registry string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	makeRoom(s.down, maxDown, func(at time.Time) time.Time { return at })
	s.down[registry] = s.options.Now()
}

// Open reports whether everybody may read an image that was pulled, and not only
// who showed credentials of their own.
func (s *Shared) Open(img image.Resolved) bool {
	_, open := s.own.Cache().Linked(img)
	return open
}

// makeRoom drops the oldest entry of a map that is full.
func makeRoom[K comparable, V any](m map[K]V, most int, at func(V) time.Time) {
	if len(m) < most {
		return
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(m)), func(a, b K) int { return at(m[a]).Compare(at(m[b])) })
	delete(m, oldest)
}

// Credential is what a tenant may show to registries.
type Credential struct {
	// Name is what errors call it, such as Secret team-a/pull.
	Name string
	// Keychain gives what to show to which registry; authn.Anonymous where it has
	// nothing for one.
	Keychain authn.Keychain
}

// Reader is the Client as one tenant may use it. It serves one evaluation, and is
// safe for concurrent use.
type Reader struct {
	shared      *Shared
	tenant      string
	credentials []Credential
	broken      error
	sealed      bool

	mu sync.Mutex
	// chosen are the clients that were let read an image, by its digest; opened
	// are those made so far, by the name of their credential.
	chosen, opened map[string]*registry.Client
}

// Reader reads for a tenant. Its credentials are tried in their order, and the
// Client's own last. A broken one, whose credentials could not be had, reads
// nothing: broken is the answer to everything.
func (s *Shared) Reader(tenant string, broken error, credentials ...Credential) *Reader {
	return &Reader{shared: s, tenant: tenant, broken: broken, credentials: credentials,
		chosen: map[string]*registry.Client{}, opened: map[string]*registry.Client{"": s.own.For(tenant)}}
}

// Sealed reads for the tenant what it showed a right to before: what is in the
// cache is not asked for again.
func (r *Reader) Sealed() *Reader {
	s := r.shared.Reader(r.tenant, r.broken, r.credentials...)
	s.sealed = true
	return s
}

// parse reads a reference without asking anybody. Folders of this host are no
// tenant's.
func (r *Reader) parse(reference string) (image.Resolved, error) {
	if strings.HasPrefix(reference, image.LayoutPrefix) {
		return image.Resolved{}, image.Malformed("parse reference %q: it is a folder of the host, which only node mode reads: push the image to a registry",
			reference)
	}
	return r.shared.own.Parse(reference)
}

// Resolve is Client.Resolve.
func (r *Reader) Resolve(ctx context.Context, reference string) (image.Resolved, error) {
	parsed, err := r.parse(reference)
	if err != nil || parsed.Digest != "" {
		return parsed, err
	}
	var resolved image.Resolved
	k, err := r.try(ctx, parsed, func(c *registry.Client) (err error) {
		resolved, err = c.Resolve(ctx, reference)
		return err
	})
	if err != nil {
		return image.Resolved{}, err
	}
	return resolved, r.took(k, resolved)
}

// Pin is Client.Pin.
func (r *Reader) Pin(reference, digest string) (image.Resolved, error) {
	if _, err := r.parse(reference); err != nil {
		return image.Resolved{}, err
	}
	return r.shared.own.Pin(reference, digest)
}

// Pull is Client.Pull, once the tenant has shown its right.
func (r *Reader) Pull(ctx context.Context, img image.Resolved) (*registry.Image, error) {
	return r.read(ctx, img, (*registry.Client).PullVia)
}

// Describe is Client.Describe, once the tenant has shown its right.
func (r *Reader) Describe(ctx context.Context, img image.Resolved) (*registry.Image, error) {
	return r.read(ctx, img, (*registry.Client).DescribeVia)
}

// read pulls or describes.
func (r *Reader) read(ctx context.Context, img image.Resolved,
	read func(*registry.Client, context.Context, image.Resolved, disk.Reading) (*registry.Image, error)) (*registry.Image, error) {
	cache := r.shared.own.Cache()
	if r.sealed && cache != nil {
		pulled, err := read(r.shared.own, ctx, img, disk.FromCache)
		if errors.Is(err, image.ErrNotFound) && r.shared.recall(ctx, img) {
			pulled, err = read(r.shared.own, ctx, img, disk.FromCache)
		}
		if !errors.Is(err, image.ErrNotFound) {
			return pulled, err
		}
	}
	known, open := cache.Linked(img)
	if !known && r.shared.recall(ctx, img) {
		known, open = cache.Linked(img)
	}
	if known {
		if err := r.permit(ctx, img, open); err != nil {
			return nil, err
		}
		return read(r.client(img), ctx, img, disk.ThroughCache)
	}
	var pulled *registry.Image
	k, err := r.try(ctx, img, func(c *registry.Client) (err error) {
		pulled, err = c.PullVia(ctx, img, disk.PastCache)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.took(k, img), cache.Link(img, k.own())); err != nil {
		pulled.Release()
		return nil, err
	}
	return pulled, nil
}

// Open is Shared.Open.
func (r *Reader) Open(img image.Resolved) bool { return r.shared.Open(img) }

// Attachments is Client.Attachments.
func (r *Reader) Attachments(img image.Resolved) (*registry.Attachments, error) {
	if r.broken != nil {
		return nil, r.broken
	}
	return r.client(img).Attachments(img)
}

// Elsewhere is Client.Elsewhere, with the Client's own credentials: whoever names the
// repository is no tenant.
func (r *Reader) Elsewhere(repository, digest string) (*registry.Attachments, error) {
	return r.shared.own.For(r.tenant).Elsewhere(repository, digest)
}

// permit lets the tenant read an image that its repository is known to hold, and
// asks the registry where it has to.
func (r *Reader) permit(ctx context.Context, img image.Resolved, open bool) error {
	if r.broken != nil || r.let(img) {
		return r.broken
	}
	lately, before, err := r.shown(img)
	switch {
	case err != nil:
		return err
	case lately != nil:
		return r.choose(*lately, img)
	case open:
		return r.choose(key{}, img)
	case before != nil && r.shared.away(img.Registry):
		return r.choose(*before, img)
	case before != nil:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, shortly)
		defer cancel()
	}
	k, err := r.try(ctx, img, func(c *registry.Client) error { return c.Readable(ctx, img) })
	if err == nil {
		err = r.took(k, img)
		if k.own() {
			err = errors.Join(err, r.shared.own.Cache().Link(img, true))
		}
		return err
	}
	if !errors.Is(err, image.ErrUnavailable) {
		return err
	}
	r.shared.noteAway(img.Registry)
	if _, before, _ := r.shown(img); before != nil {
		return r.choose(*before, img)
	}
	return err
}

// shown are the first credentials that were taken for an image lately, and the
// first that were taken before.
func (r *Reader) shown(img image.Resolved) (lately, before *key, err error) {
	for _, k := range r.keys(img) {
		if k.own() {
			continue
		}
		of, err := r.shared.right(img, k.shown)
		if err != nil {
			return nil, nil, err
		}
		age, known := r.shared.age(r.tenant, of)
		switch {
		case known && age < r.shared.options.FreshFor:
			return &k, nil, nil
		case known && before == nil:
			before = &k
		}
	}
	return nil, before, nil
}

// try does something with the keys in turn, until one is taken.
func (r *Reader) try(ctx context.Context, img image.Resolved, do func(*registry.Client) error) (key, error) {
	if r.broken != nil {
		return key{}, r.broken
	}
	var refused []error
	for _, k := range r.keys(img) {
		c, err := r.open(k)
		if err == nil {
			err = do(c)
		}
		if err == nil {
			return k, nil
		}
		if ctx.Err() != nil || !errors.Is(err, image.ErrUnauthorized) && !errors.Is(err, image.ErrNotFound) {
			return key{}, err
		}
		if of, err := r.shared.right(img, k.shown); err == nil && !k.own() {
			r.shared.note(r.tenant, of, false)
		}
		refused = append(refused, err)
	}
	return key{}, r.rejection(img, refused)
}

// rejection is what all keys came to, with the fix.
func (r *Reader) rejection(img image.Resolved, refused []error) error {
	err := refused[0]
	for _, e := range refused {
		if errors.Is(e, image.ErrUnauthorized) {
			err = e
			break
		}
	}
	if len(r.credentials) == 0 {
		if errors.Is(err, image.ErrUnauthorized) {
			err = fmt.Errorf("%w: if it is private, name a Secret that may pull it in spec.bytecode.imagePullSecrets", err)
		}
		return err
	}
	fit := map[string]bool{}
	for _, k := range r.keys(img) {
		fit[k.Name] = true
	}
	said := make([]string, 0, len(r.credentials))
	for _, c := range r.credentials {
		if fit[c.Name] {
			said = append(said, c.Name+" was not taken")
		} else {
			said = append(said, c.Name+" holds nothing for "+img.Registry+"/"+img.Repository)
		}
	}
	return fmt.Errorf("%w: %s: correct it, or name another in spec.bytecode.imagePullSecrets", err, strings.Join(said, ", "))
}

// took notes which key a registry took for an image.
func (r *Reader) took(k key, img image.Resolved) error {
	if !k.own() {
		of, err := r.shared.right(img, k.shown)
		if err != nil {
			return err
		}
		r.shared.note(r.tenant, of, true)
	}
	return r.choose(k, img)
}

// choose has an image read with a key.
func (r *Reader) choose(k key, img image.Resolved) error {
	c, err := r.open(k)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.chosen[img.Digest] = c
	}
	return err
}

// let reports whether an image is read already.
func (r *Reader) let(img image.Resolved) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chosen[img.Digest] != nil
}

// client is the one that was let read the image; before that, the first whose
// credentials are for its registry.
func (r *Reader) client(img image.Resolved) *registry.Client {
	r.mu.Lock()
	chosen := r.chosen[img.Digest]
	r.mu.Unlock()
	if chosen != nil {
		return chosen
	}
	if c, err := r.open(r.keys(img)[0]); err == nil {
		return c
	}
	return r.shared.own
}

// key is a credential that fits an image's registry; the zero value stands for
// the Client's own.
type key struct {
	Credential
	shown *authn.AuthConfig
}

func (k key) own() bool { return k.Name == "" }

// keys are those that fit, in the order they are tried; the last is the Client's
// own.
func (r *Reader) keys(img image.Resolved) []key {
	var fit []key
	repo, err := img.RepositoryName()
	for _, c := range r.credentials {
		if err != nil {
			break
		}
		a, err := c.Keychain.Resolve(repo)
		if err != nil || a == authn.Anonymous {
			continue
		}
		if shown, err := a.Authorization(); err == nil {
			fit = append(fit, key{c, shown})
		}
	}
	return append(fit, key{})
}

// open is a client with the key.
func (r *Reader) open(k key) (*registry.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.opened[k.Name]; c != nil {
		return c, nil
	}
	c, err := r.shared.own.WithKeychain(k.Keychain)
	if err != nil {
		return nil, err
	}
	c = c.For(r.tenant)
	r.opened[k.Name] = c
	return c, nil
}
