package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	remotetransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

func TestReferences(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	tests := map[string]struct {
		reference string
		want      image.Resolved
		refused   string
	}{
		"a tag":  {"registry.example.com/bpf/x:v1", image.Resolved{Registry: "registry.example.com", Repository: "bpf/x", Tag: "v1"}, ""},
		"no tag": {"registry.example.com/bpf/x", image.Resolved{Registry: "registry.example.com", Repository: "bpf/x", Tag: "latest"}, ""},
		"a digest": {
			"registry.example.com/bpf/x@" + digest, image.Resolved{Registry: "registry.example.com", Repository: "bpf/x", Digest: digest}, "",
		},
		"a tag and a digest": {
			"registry.example.com/bpf/x:v1@" + digest, image.Resolved{Registry: "registry.example.com", Repository: "bpf/x", Digest: digest}, "",
		},
		"a port":                       {"localhost:5000/x:v1", image.Resolved{Registry: "localhost:5000", Repository: "x", Tag: "v1"}, ""},
		"an insecure registry":         {"registry.lan/x:v1", image.Resolved{Registry: "registry.lan", Repository: "x", Tag: "v1", Insecure: true}, ""},
		"docker's hub":                 {"user/x:v1", image.Resolved{Registry: "index.docker.io", Repository: "user/x", Tag: "v1"}, ""},
		"a layout":                     {"oci:dir", image.Resolved{Repository: "dir"}, ""},
		"a layout's tag":               {"oci:./a/dir:v1", image.Resolved{Repository: "./a/dir", Tag: "v1"}, ""},
		"a layout's digest":            {"oci:/a/dir@" + digest, image.Resolved{Repository: "/a/dir", Digest: digest}, ""},
		"a layout with a colon inside": {"oci:/a:b/dir", image.Resolved{Repository: "/a:b/dir"}, ""},
		"a layout with an at inside":   {"oci:/a@b/dir@" + digest, image.Resolved{Repository: "/a@b/dir", Digest: digest}, ""},
		"nothing":                      {"", image.Resolved{}, `parse reference ""`},
		"capitals":                     {"registry.example.com/BPF/x", image.Resolved{}, "repository"},
		"a URL":                        {"https://registry.example.com/x", image.Resolved{}, "parse reference"},
		"a layout without folder":      {"oci:", image.Resolved{}, "names no directory"},
		"a layout with only a tag":     {"oci::v1", image.Resolved{}, "names no directory"},
		"a short digest":               {"registry.example.com/x@sha256:abcd", image.Resolved{}, "parse"},
		"a layout's short digest":      {"oci:dir@sha256:abcd", image.Resolved{}, "parse digest"},
		"another digest":               {"oci:dir@sha512:" + strings.Repeat("ab", 64), image.Resolved{}, "only sha256"},
		"another digest in a registry": {"registry.example.com/x@sha512:" + strings.Repeat("ab", 64), image.Resolved{}, ""},
	}
	c := newTestClient(t, func(o *Options) { o.InsecureRegistries = []string{"registry.lan"} })
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := c.Parse(test.reference)
			if test.want == (image.Resolved{}) {
				refused(t, err, image.ErrMalformed, test.refused)
				return
			}
			test.want.Reference = test.reference
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("parse (-want +got):\n%s", diff)
			}
			if got.Digest == "" {
				return
			}
			if resolved, err := c.Resolve(t.Context(), test.reference); err != nil || resolved != got {
				t.Errorf("Resolve of a digest: %v, %v", resolved, err)
			}
		})
	}
}

func TestPin(t *testing.T) {
	c := newTestClient(t)
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	got, err := c.Pin("registry.example.com/x:v1", one)
	want := image.Resolved{Reference: "registry.example.com/x:v1", Registry: "registry.example.com", Repository: "x", Tag: "v1", Digest: one}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Pin: %v (-want +got):\n%s", err, diff)
	}
	if _, err := c.Pin("registry.example.com/x@"+one, one); err != nil {
		t.Errorf("Pin to the digest it has: %v", err)
	}
	for reference, digest := range map[string]string{"registry.example.com/x@" + one: two, "": one, "x": "sha256:short"} {
		if _, err := c.Pin(reference, digest); !errors.Is(err, image.ErrMalformed) {
			t.Errorf("Pin %q to %s: %v, want ErrMalformed", reference, digest, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{"bytes": {LayerBytes: -1}, "time": {Silence: -1}, "number": {Attempts: -1}} {
		if _, err := NewClient(o); err == nil {
			t.Errorf("a negative %s was accepted", name)
		}
	}
	c, err := NewClient(Options{})
	if err != nil {
		t.Fatalf("NewClient: %v", err)
	}
	if c.Keychain() != authn.DefaultKeychain {
		t.Error("the default keychain is not Docker's")
	}
	if c.options.Platform.OS != "linux" || c.options.Platform.Architecture == "" {
		t.Errorf("the default platform is %v", c.options.Platform)
	}
}

func TestCredentialsComeFromTheKeychain(t *testing.T) {
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	f := fake(b)
	f.first = func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); ok && user == "me" && password == "mine" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	srv := images.Serve(t, f)
	known := newTestClient(t, func(o *Options) { o.Keychain = keychain{"me", "mine"} })
	if _, err := known.Resolve(t.Context(), srv.Host+"/bpf/x:v1"); err != nil {
		t.Errorf("Resolve with credentials: %v", err)
	}
	for name, c := range map[string]*Client{
		"none":  newTestClient(t),
		"wrong": newTestClient(t, func(o *Options) { o.Keychain = keychain{"me", "PASSWORD"} }),
	} {
		_, err := c.Resolve(t.Context(), srv.Host+"/bpf/x:v1")
		if !errors.Is(err, image.ErrUnauthorized) || strings.Contains(err.Error(), "PASSWORD") {
			t.Errorf("Resolve with %s credentials: %v, want ErrUnauthorized", name, err)
		}
	}
}

type keychain struct{ user, password string }

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{Username: k.user, Password: k.password}), nil
}

func TestClassify(t *testing.T) {
	request := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://user:pw@blobs.example.com/x?sig=SECRET", Err: err}
	}
	tests := map[string]struct {
		err  error
		kind error
		text string
	}{
		"a timeout":         {request(context.DeadlineExceeded), image.ErrUnavailable, `get x: Get "https://blobs.example.com/x": context deadline exceeded`},
		"an unexpected end": {io.ErrUnexpectedEOF, image.ErrUnavailable, "get x: unexpected EOF"},
		"a status":          {&remotetransport.Error{StatusCode: 404}, image.ErrNotFound, "get x: status 404 Not Found"},
		"a wrapped status":  {fmt.Errorf("a: %w", &remotetransport.Error{StatusCode: 410}), image.ErrNotFound, "get x: status 410 Gone"},
		"the registry's words": {
			&remotetransport.Error{StatusCode: 403, Errors: []remotetransport.Diagnostic{{Code: "DENIED", Message: "see http://x/?t=SECRET", Detail: "SECRET"}}},
			image.ErrUnauthorized, "get x: status 403 Forbidden; DENIED: see http://x/",
		},
		"an error with a kind": {image.Malformed("it is odd"), image.ErrMalformed, "get x: it is odd"},
		"a kind behind a URL": {
			request(image.Malformed("see https://x/?SECRET")), image.ErrUnavailable, `get x: Get "https://blobs.example.com/x": see https://x/`,
		},
		"something quite other": {errors.New("strange\nthing"), image.ErrUnavailable, "get x: strange thing"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Classify("get", "x", test.err)
			if !errors.Is(got, test.kind) {
				t.Errorf("got %v, want %v", got, test.kind)
			}
			if got.Error() != test.text {
				t.Errorf("got %q, want %q", got, test.text)
			}
			noSecret(t, got, "SECRET")
		})
	}
	if err := Classify("get", "x", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
