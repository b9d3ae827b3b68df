package registry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/test/fixture/images"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestWhichRegistriesMayBeNamed(t *testing.T) {
	for name, c := range map[string]struct {
		patterns []string
		allowed  []string
		refused  []string
	}{
		"every public one": {[]string{"*"},
			[]string{"ghcr.io/acme/app:v1", "acme/app", "8.8.8.8:5000/a/b", "[2606:4700::1111]:5000/a/b"},
			[]string{"localhost:5000/a", "127.0.0.1:5000/a", "10.0.0.1/a/b", "192.168.1.1:443/a/b", "172.20.0.1:5000/a", "169.254.169.254/a/b", "[::1]:5000/a",
				"[fd00::1]:5000/a",
				"100.64.1.1:5000/a", "registry.team.svc/a", "registry.team.svc.cluster.local:5000/a", "metadata.google.internal/a/b", "0.0.0.0:5000/a",
				"[::ffff:10.0.0.1]:5000/a", "168.63.129.16:80/a"}},
		"one and its repositories": {[]string{"ghcr.io/acme"},
			[]string{"ghcr.io/acme/app:v1", "ghcr.io/acme/team/app", "ghcr.io/acme:v1", "GHCR.io/acme/app"},
			[]string{"ghcr.io/acme-evil/app", "ghcr.io/other", "ghcr.io:5000/acme/app", "docker.io/acme/app", "acme/app", "ghcr.io.example.com/acme/app"}},
		"one with a port": {[]string{"10.0.0.1:5000"}, []string{"10.0.0.1:5000/a"}, []string{"10.0.0.1:5001/a", "10.0.0.1/a/b", "ghcr.io/a/b"}},
		"one at any port": {[]string{"127.0.0.1:*"}, []string{"127.0.0.1:5000/a", "127.0.0.1/a/b"}, []string{"127.0.0.2:5000/a"}},
		"docker hub":      {[]string{"docker.io"}, []string{"acme/app", "docker.io/acme/app", "index.docker.io/acme/app"}, []string{"ghcr.io/acme/app"}},
		"every name below a domain": {[]string{"*.example.com"}, []string{"a.example.com/x", "a.b.example.com/x"}, []string{
			"example.com/x", "a.example.com:5000/x", "evilexample.com/x",
		}},
		"a public one and one inside": {[]string{"*", "registry.team.svc:5000/bpf"}, []string{"ghcr.io/a/b", "registry.team.svc:5000/bpf/app"},
			[]string{"registry.team.svc:5000/other", "registry.other.svc:5000/bpf/app"}},
		"none": {[]string{}, nil, []string{"ghcr.io/a/b", "localhost:5000/a"}},
	} {
		client := newTestClient(t, func(o *Options) { o.AllowedRegistries = c.patterns })
		for _, reference := range c.allowed {
			if _, err := client.Parse(reference); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, reference := range c.refused {
			if _, err := client.Parse(reference); !errors.Is(err, image.ErrNotAllowed) {
				t.Errorf("%s: %s: %v", name, reference, err)
			}
		}
	}
}

// TestARefusalSaysWhyWhereItIsNotWithheld, and which pattern allows what was rejected.
func TestARefusalSaysWhyWhereItIsNotWithheld(t *testing.T) {
	listed := []string{"*", "10.0.0.1/bpf"}
	for reference, c := range map[string]struct {
		patterns      []string
		says, pattern string
	}{
		"127.0.0.1:5077/bpf/fw:v1": {listed, "127.0.0.1 is a loopback address, and one that is not listed may be at a public address alone", "127.0.0.1:5077"},
		"192.168.1.1:5000/a":       {listed, "192.168.1.1 is a private address, and", "192.168.1.1:5000"},
		"169.254.169.254/a/b":      {listed, "169.254.169.254 is a link-local address, and", "169.254.169.254"},
		"100.64.1.1:5000/a":        {listed, "100.64.1.1 is a reserved address, and", "100.64.1.1:5000"},
		"0.0.0.0:5000/a":           {listed, "0.0.0.0 is an unspecified address, and", "0.0.0.0:5000"},
		"[::1]:5000/a":             {listed, "::1 is a loopback address, and", "[::1]:5000"},
		"localhost:5000/a":         {listed, "localhost is a name of this machine or of an internal network, and", "localhost:5000"},
		"10.0.0.1/other":           {listed, "it is listed with other repositories than other", "10.0.0.1/other"},
		"ghcr.io/a/b":              {[]string{"quay.io"}, "it is not listed", "ghcr.io"},
	} {
		client := newTestClient(t, func(o *Options) { o.AllowedRegistries = c.patterns })
		_, err := client.Parse(reference)
		why := (*transport.NotAllowedError)(nil)
		if !errors.As(err, &why) || why.Pattern != c.pattern {
			t.Errorf("%s: %v, %+v", reference, err, why)
			continue
		}
		if want := ": registry " + why.Registry + " is not allowed: " + c.says; !strings.Contains(err.Error(), want) {
			t.Errorf("%s: it says %q, want %q in it", reference, err, want)
		}
		client = newTestClient(t, func(o *Options) { o.AllowedRegistries = append([]string{why.Pattern}, c.patterns...) })
		if _, err := client.Parse(reference); err != nil {
			t.Errorf("%s: listing %s does not allow it: %v", reference, why.Pattern, err)
		}
		client = newTestClient(t, func(o *Options) { o.AllowedRegistries, o.Unreachable = c.patterns, func(string, error) {} })
		if _, err := client.Parse(reference); !strings.HasSuffix(err.Error(), "could not be reached or is not allowed; ask your platform team") {
			t.Errorf("%s: where the cause is withheld it says %v", reference, err)
		}
	}
}

func TestAnInsecureRegistryIsNamedByThat(t *testing.T) {
	client := newTestClient(t, func(o *Options) { o.AllowedRegistries, o.InsecureRegistries = []string{"*"}, []string{"10.0.0.1:5000"} })
	if _, err := client.Parse("10.0.0.1:5000/a"); err != nil {
		t.Error(err)
	}
}

func TestPatternsAreRead(t *testing.T) {
	for _, bad := range []string{"https://ghcr.io", "", "ghcr.io/UPPER", "a b", "**", "gh*.io", "ghcr.io:port", "ghcr.io?x", "user@ghcr.io"} {
		if _, err := NewClient(quick(func(o *Options) { o.AllowedRegistries = []string{bad} })); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestARegistrySendsNobodyInside has a registry that is allowed send on to a server
// that is not: for a blob, and for a token.
func TestARegistrySendsNobodyInside(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server inside was asked") }))
	defer inside.Close()
	digest := "sha256:" + strings.Repeat("0", 64)
	for name, answer := range map[string]http.HandlerFunc{
		"by a redirect": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				http.Redirect(w, r, inside.URL+"/secret", http.StatusTemporaryRedirect)
			}
		},
		"for a token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+inside.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			outside := httptest.NewServer(answer)
			defer outside.Close()
			registry := strings.TrimPrefix(outside.URL, "http://")
			client := newTestClient(t, func(o *Options) { o.AllowedRegistries = []string{registry} })
			_, err := client.Pull(t.Context(), image.Resolved{Reference: registry + "/a@" + digest, Registry: registry, Repository: "a", Digest: digest})
			if !errors.Is(err, image.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
}

// TestARedirectToThisMachineComesFromThisMachine has a registry elsewhere send on to
// this machine, by every name of it. Registries on this machine may.
func TestARedirectToThisMachineComesFromThisMachine(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		from, to string
		allowed  []string
		token    bool
		reached  bool
	}{
		"from elsewhere by address":      {from: "registry.example.com", to: "http://127.0.0.1:PORT/x"},
		"from elsewhere by name":         {from: "registry.example.com", to: "http://localhost:PORT/x"},
		"from elsewhere by a name below": {from: "registry.example.com", to: "http://a.LOCALHOST.:PORT/x"},
		"from elsewhere, and this machine is listed": {
			from: "registry.example.com", to: "http://localhost:PORT/x", allowed: []string{"registry.example.com", "localhost:*"},
		},
		"from elsewhere for a token":                   {from: "registry.example.com", to: "http://localhost:PORT/x", token: true},
		"from elsewhere for a token, in another words": {from: "registry.example.com", to: `http:\/\/localh\ost:PORT/x`, token: true},
		"from this machine by name":                    {from: "127.0.0.1", to: "http://localhost:PORT/x", reached: true},
		"from this machine for a token":                {from: "127.0.0.1", to: "http://localhost:PORT/x", token: true, reached: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.reached {
				need.Localhost(t)
			}
			var reached atomic.Bool
			inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				reached.Store(true)
				w.WriteHeader(http.StatusNotFound)
			}))
			defer inside.Close()
			_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
			to := strings.ReplaceAll(c.to, "PORT", port)
			registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case c.token:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="x"`)
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path != "/v2/":
					w.Header().Set("Location", to)
					w.WriteHeader(http.StatusTemporaryRedirect)
				}
			}))
			defer registry.Close()
			from := registry.Listener.Addr().String()
			if c.from != "127.0.0.1" {
				from = c.from
			}
			client := newTestClient(t, func(o *Options) {
				o.AllowedRegistries, o.InsecureRegistries, o.Attempts = c.allowed, []string{c.from}, 1
				o.Transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
					if strings.HasPrefix(address, "registry.example.com:") {
						address = registry.Listener.Addr().String()
					}
					return (&net.Dialer{}).DialContext(ctx, network, address)
				}}
			})
			_, err := client.Pull(t.Context(), image.Resolved{Reference: from + "/a@" + digest, Registry: from, Repository: "a", Digest: digest, Insecure: true})
			if err == nil || reached.Load() != c.reached {
				t.Errorf("this machine was asked: %v, %v", reached.Load(), err)
			}
			if !c.reached && !strings.Contains(err.Error(), "is on another machine") && !strings.Contains(err.Error(), "SSRF protection") {
				t.Errorf("it is told as %v", err)
			}
		})
	}
}

// TestAllWaysARegistryIsNotReachedReadAlike: whoever names images learns nothing of
// what is where.
func TestAllWaysARegistryIsNotReachedReadAlike(t *testing.T) {
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	silent, refusing := closed.Addr().String(), unused(t)
	site := httptest.NewServer(http.NotFoundHandler())
	defer site.Close()
	teapot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer teapot.Close()
	strange := httptest.NewTLSServer(http.NotFoundHandler())
	defer strange.Close()
	host := func(s *httptest.Server) string { return s.Listener.Addr().String() }

	for name, c := range map[string]struct{ registry, cause string }{
		"nobody listens":               {refusing, "refused"},
		"it says nothing":              {silent, ""},
		"there is no such host":        {"nowhere.invalid:5000", ""},
		"its name is of the inside":    {"127.0.0.9:5000", ""},
		"it shows another certificate": {host(strange), ""},
		"it is a web site":             {host(site), "404"},
		"it is something else":         {host(teapot), "418"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var told []string
			client := newTestClient(t, func(o *Options) {
				o.AllowedRegistries = []string{"*", refusing, silent, host(site), host(teapot), host(strange)}
				o.Silence, o.Attempts = 200*1e6, 1
				o.Unreachable = func(registry string, cause error) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, registry+": "+cause.Error())
				}
			})
			_, err := client.Resolve(t.Context(), c.registry+"/a:v1")
			if err == nil || !errors.Is(err, image.ErrUnavailable) && !errors.Is(err, image.ErrNotAllowed) {
				t.Fatal(err)
			}
			want := "registry " + c.registry + " could not be reached or is not allowed; ask your platform team"
			if _, says, _ := strings.Cut(err.Error(), ": "); says != want {
				t.Errorf("it says %q, want %q", says, want)
			}
			if errors.Is(err, image.ErrNotAllowed) {
				return
			}
			if len(told) != 1 || !strings.HasPrefix(told[0], c.registry+": ") || !strings.Contains(told[0], c.cause) || strings.Contains(told[0], "ask your") {
				t.Errorf("the log has %q", told)
			}
		})
	}
}

// unused is an address where nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestWhatARegistryAnswersIsNotWithheld(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		kind   error
	}{
		"no such image":     {http.StatusNotFound, image.ErrNotFound},
		"other credentials": {http.StatusForbidden, image.ErrUnauthorized},
		"it is overloaded":  {http.StatusServiceUnavailable, image.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v2/" {
					w.WriteHeader(c.status)
				}
			}))
			defer server.Close()
			registry := server.Listener.Addr().String()
			client := newTestClient(t, func(o *Options) {
				o.AllowedRegistries, o.Attempts = []string{registry}, 1
				o.Unreachable = func(string, error) { t.Error("it was reached") }
			})
			if _, err := client.Resolve(t.Context(), registry+"/a:v1"); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), http.StatusText(c.status)) {
				t.Error(err)
			}
		})
	}
}

func TestInsecureRegistry(t *testing.T) {
	srv := images.Real(t)
	// The name leads to the test's server, and its scheme stays what it is.
	to := roundTrips(func(r *http.Request) (*http.Response, error) {
		if r.URL.Scheme != "http" {
			return nil, errors.New("nobody speaks TLS here")
		}
		r = r.Clone(r.Context())
		r.URL.Host = srv.Host
		return http.DefaultTransport.RoundTrip(r)
	})
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	trusting := newTestClient(t, func(o *Options) { o.Transport, o.InsecureRegistries = to, []string{"registry.lan:5000"} })
	r := mustPush(t, trusting, "registry.lan:5000/bpf/x:v1", b)
	mustPull(t, trusting, r)
	d, err := r.ByDigest()
	if err != nil || d.Context().Scheme() != "http" {
		t.Errorf("ByDigest gives scheme %s, %v; want http", d.Context().Scheme(), err)
	}
	wary := newTestClient(t, func(o *Options) { o.Transport = to })
	_, err = wary.Resolve(t.Context(), "registry.lan:5000/bpf/x:v1")
	refused(t, err, image.ErrUnavailable, "TLS")
	_, err = wary.Resolve(t.Context(), "192.168.1.10:5000/bpf/x:v1")
	refused(t, err, image.ErrUnavailable, "plain HTTP to 192.168.1.10:5000 is not allowed")
}

type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
