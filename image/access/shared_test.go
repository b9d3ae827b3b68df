package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/disk"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/images"
)

// nobody keeps the credentials of whoever runs the tests out of them.
type nobody struct{}

func (nobody) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

// newClient makes a client under which a test that goes wrong ends soon.
func newClient(t *testing.T, change ...func(*registry.Options)) *registry.Client {
	t.Helper()
	o := registry.Options{
		Keychain: nobody{}, Timeout: 20 * time.Second, Silence: 10 * time.Second, Backoff: time.Millisecond,
		Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
	}
	for _, c := range change {
		c(&o)
	}
	c, err := registry.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cachedAt makes a client keep a cache in a folder.
func cachedAt(dir string) func(*registry.Options) {
	return func(o *registry.Options) { o.CacheDir = dir }
}

// private is a registry that lets in whom it knows, by user and password, and
// repeats to the others what they showed.
type private struct {
	*images.Server
	mu sync.Mutex
	// users are let read everything; open lets in everybody, down nobody.
	users      map[string]string
	open, down bool
}

func newPrivate(t *testing.T) *private {
	t.Helper()
	p := &private{users: map[string]string{"owner": "owners-password"}}
	inner := containerregistry.New(containerregistry.WithReferrersSupport(true))
	p.Server = images.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		p.mu.Lock()
		known, down := p.open || user != "" && p.users[user] == password, p.down
		p.mu.Unlock()
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case !known:
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"no access for %s with %s"}]}`, user, password)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	return p
}

func (p *private) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// shows are credentials for a host, as a pull Secret has them.
type shows struct{ host, user, password string }

// Resolve implements authn.Keychain.
func (s shows) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if r.RegistryStr() != s.host {
		return authn.Anonymous, nil
	}
	return &authn.Basic{Username: s.user, Password: s.password}, nil
}

// credential is that of a user at the registry.
func (p *private) credential(user, password string) Credential {
	return Credential{Name: "Secret " + user, Keychain: shows{p.Host, user, password}}
}

// world is a private registry with an image, and what tenants read it through.
type sharing struct {
	*private
	shared *Shared
	client *registry.Client
	ref    string
	image  image.Resolved
	now    time.Time
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	w := &sharing{private: newPrivate(t), now: time.Now()}
	owner := newClient(t, func(o *registry.Options) { o.Keychain = shows{w.Host, "owner", "owners-password"} })
	w.ref = w.Host + "/bpf/app:v1"
	var err error
	if w.image, err = owner.Push(t.Context(), w.ref, images.MustBuild(t, images.LittleEndian, image.BuildOptions{})); err != nil {
		t.Fatal(err)
	}
	w.client = newClient(t, cachedAt(t.TempDir()), func(o *registry.Options) { o.Attempts = 1 })
	w.shared = NewShared(w.client, SharedOptions{Now: func() time.Time { return w.now }})
	w.Taken()
	return w
}

// owner has the right to pull.
func (w *sharing) owner() *Reader {
	return w.shared.Reader("team-a", nil, w.credential("owner", "owners-password"))
}

// reads resolves and pulls as the pipeline does.
func reads(ctx context.Context, r *Reader, ref string) error {
	resolved, err := r.Resolve(ctx, ref)
	if err == nil {
		_, err = r.Pull(ctx, resolved)
	}
	return err
}

func TestNobodyGetsWhatAnotherPulled(t *testing.T) {
	for name, c := range map[string]struct {
		reader func(*sharing) *Reader
		says   []string
	}{
		"a tenant without a Secret": {
			func(w *sharing) *Reader { return w.shared.Reader("team-b", nil) },
			[]string{"401", "name a Secret that may pull it in spec.bytecode.imagePullSecrets"},
		},
		"a tenant with a wrong password": {
			func(w *sharing) *Reader {
				return w.shared.Reader("team-b", nil, w.credential("owner", "guessed-password"))
			},
			[]string{"Secret owner was not taken", "correct it, or name another"},
		},
		"a tenant with a Secret for another registry": {
			func(w *sharing) *Reader {
				return w.shared.Reader("team-b", nil, Credential{"Secret other", shows{"registry.invalid", "owner", "owners-password"}})
			},
			[]string{"Secret other holds nothing for 127.0.0.1"},
		},
		"a tenant whose Secret is not there": {
			func(w *sharing) *Reader { return w.shared.Reader("team-b", errors.New("get Secret team-b/pull: gone")) },
			[]string{"get Secret team-b/pull: gone"},
		},
		"the owner's credentials in another tenant's name, once they are revoked": {
			func(w *sharing) *Reader {
				w.set(func() { w.users["owner"] = "another" })
				return w.shared.Reader("team-b", nil, w.credential("owner", "owners-password"))
			},
			[]string{"Secret owner was not taken"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSharing(t)
			if err := reads(t.Context(), w.owner(), w.ref); err != nil {
				t.Fatal(err)
			}
			r := c.reader(w)
			byDigest := w.Host + "/bpf/app@" + w.image.Digest
			pinned, err := r.Pin(w.ref, w.image.Digest)
			if err != nil {
				t.Fatal(err)
			}
			_, pulled := r.Pull(t.Context(), pinned)
			_, described := r.Describe(t.Context(), pinned)
			for way, err := range map[string]error{
				"by tag": reads(t.Context(), r, w.ref), "by digest": reads(t.Context(), r, byDigest), "pinned": pulled, "described": described,
			} {
				if err == nil {
					t.Errorf("%s: it was let read", way)
					continue
				}
				for _, want := range c.says {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v does not say %q", way, err, want)
					}
				}
				if strings.Contains(err.Error(), "-password") {
					t.Errorf("%s: the error shows a password: %v", way, err)
				}
			}
		})
	}
}

func TestARegistryThatClaimsADigestOpensNothing(t *testing.T) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	// It says yes to everything, and sends what it was given: nothing.
	liar := images.Serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Docker-Content-Digest", w.image.Digest)
		rw.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		rw.Header().Set("Content-Length", "2")
		if r.Method == http.MethodGet {
			_, _ = rw.Write([]byte("{}"))
		}
	}))
	r := w.shared.Reader("team-b", nil, Credential{"Secret liar", shows{liar.Host, "liar", "x"}})
	if err := reads(t.Context(), r, liar.Host+"/bpf/app:v1"); err == nil {
		t.Error("a claim was believed")
	}
	if err := reads(t.Context(), r, liar.Host+"/bpf/app@"+w.image.Digest); err == nil {
		t.Error("a claim of a digest was believed")
	}
}

func TestARightIsBelievedForAWhile(t *testing.T) {
	for name, read := range map[string]func(*Reader, context.Context, image.Resolved) (*registry.Image, error){
		"Pull": (*Reader).Pull, "Describe": (*Reader).Describe,
	} {
		t.Run(name, func(t *testing.T) { testRight(t, read) })
	}
}

func testRight(t *testing.T, read func(*Reader, context.Context, image.Resolved) (*registry.Image, error)) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	again := func() error {
		t.Helper()
		w.Taken()
		pinned, err := w.owner().Pin(w.ref, w.image.Digest)
		if err != nil {
			t.Fatal(err)
		}
		_, err = read(w.owner(), t.Context(), pinned)
		return err
	}
	if err := again(); err != nil || len(w.Taken()) != 0 {
		t.Errorf("at once, it was asked for again: %v", err)
	}
	w.now = w.now.Add(11 * time.Minute)
	if err := again(); err != nil {
		t.Error(err)
	}
	if asked := w.Taken(); len(asked) == 0 || asked[len(asked)-1] != "HEAD /v2/bpf/app/manifests/"+w.image.Digest {
		t.Errorf("later, %v was asked", asked)
	}
	w.set(func() { w.down = true })
	w.now = w.now.Add(11 * time.Minute)
	if err := again(); err != nil || len(w.Taken()) == 0 {
		t.Errorf("with the registry away: %v", err)
	}
	if err := again(); err != nil || len(w.Taken()) != 0 {
		t.Errorf("with the registry away a moment ago, it was asked again: %v", err)
	}
	w.now = w.now.Add(24 * time.Hour)
	if err := again(); !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("with the registry away for a day: %v", err)
	}
	w.set(func() { w.down = false })
	if err := again(); err != nil {
		t.Error(err)
	}
	// What is rejected once is rejected with the registry away as well.
	w.set(func() { w.users["owner"] = "another" })
	w.now = w.now.Add(11 * time.Minute)
	if err := again(); !errors.Is(err, image.ErrUnauthorized) {
		t.Errorf("revoked: %v", err)
	}
	w.set(func() { w.down = true })
	w.now = w.now.Add(time.Minute)
	if err := again(); err == nil {
		t.Error("revoked, and the registry away: it was let read")
	}
	sealed := w.owner().Sealed()
	if _, err := read(sealed, t.Context(), w.image); err != nil {
		t.Errorf("what was sealed before: %v", err)
	}
}

func TestWhatEverybodyMayReadIsAskedForOnce(t *testing.T) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	w.set(func() { w.open = true })
	if err := reads(t.Context(), w.shared.Reader("team-b", nil), w.Host+"/bpf/app@"+w.image.Digest); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(48 * time.Hour)
	w.set(func() { w.down = true })
	w.Taken()
	for _, tenant := range []string{"team-b", "team-c"} {
		again := NewShared(w.client, SharedOptions{Now: func() time.Time { return w.now }})
		if err := reads(t.Context(), again.Reader(tenant, nil), w.Host+"/bpf/app@"+w.image.Digest); err != nil {
			t.Error(err)
		}
	}
	if asked := w.Taken(); len(asked) != 0 {
		t.Errorf("it was asked for again: %v", asked)
	}
}

func TestSecretsAreTriedInTurn(t *testing.T) {
	w := newSharing(t)
	w.set(func() { w.users["reader"] = "readers-password" })
	r := w.shared.Reader("team-a", nil, Credential{"Secret other", shows{"registry.invalid", "x", "x"}},
		w.credential("stranger", "strangers-password"), w.credential("reader", "readers-password"))
	if err := reads(t.Context(), r, w.ref); err != nil {
		t.Error(err)
	}
	attached, err := r.Attachments(w.image)
	if err == nil {
		_, _, err = attached.Referrers(t.Context())
	}
	if err != nil {
		t.Errorf("what is attached: %v", err)
	}
}

func TestAFloodOfSecretsIsBounded(t *testing.T) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxRights {
		w.now = w.now.Add(time.Millisecond)
		of, err := w.shared.right(w.image, &authn.AuthConfig{Username: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		w.shared.note("flood", of, true)
		w.shared.note(fmt.Sprint("flood-", i), of, true)
		w.shared.noteAway(fmt.Sprint("registry-", i))
	}
	if n := len(w.shared.tenants["flood"].rights); n > maxRights {
		t.Errorf("%d rights of one tenant are kept", n)
	}
	if n := len(w.shared.down); n > maxDown {
		t.Errorf("%d registries are kept", n)
	}
	if _, _, err := w.owner().shown(w.image); err != nil {
		t.Fatal(err)
	}
	if lately, _, _ := w.owner().shown(w.image); lately == nil {
		t.Error("a flood made another tenant's right forgotten")
	}
	for i := range 2 * maxTenants {
		w.shared.note(fmt.Sprint("tenant-", i), right{}, true)
	}
	if n := len(w.shared.tenants); n > maxTenants {
		t.Errorf("%d tenants are kept", n)
	}
}

func TestFoldersOfTheHostAreNoParty(t *testing.T) {
	w := newSharing(t)
	if _, err := w.owner().Resolve(t.Context(), "oci:/etc"); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("%v", err)
	}
	if _, err := w.owner().Pin("oci:/etc", w.image.Digest); !errors.Is(err, image.ErrMalformed) {
		t.Errorf("%v", err)
	}
}

func TestLinksGoWithTheirImages(t *testing.T) {
	w := newSharing(t)
	if err := reads(t.Context(), w.owner(), w.ref); err != nil {
		t.Fatal(err)
	}
	prune := func(o disk.PruneOptions) {
		t.Helper()
		o.MinAge = time.Nanosecond
		if _, err := w.client.Cache().Prune(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	prune(disk.PruneOptions{MaxBytes: 1 << 20})
	if known, _ := w.client.Cache().Linked(w.image); !known {
		t.Error("the link of an image in the cache went")
	}
	prune(disk.PruneOptions{})
	if known, _ := w.client.Cache().Linked(w.image); known {
		t.Error("the link of an image that went stayed")
	}
}
