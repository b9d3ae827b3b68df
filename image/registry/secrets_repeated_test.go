package registry

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

// echoed are ways to repeat a password, and what gives it away in each.
func echoed(password string) map[string]string {
	pointed := ""
	for _, r := range password {
		pointed += fmt.Sprintf(`\u%04x`, r)
	}
	percent := ""
	for _, b := range []byte(password) {
		percent += fmt.Sprintf("%%%02X", b)
	}
	return map[string]string{
		"as it is":               password,
		"percent-escaped":        url.PathEscape(password),
		"percent-escaped wholly": percent,
		"percent-escaped twice":  url.PathEscape(percent),
		"escaped as in JSON":     pointed,
		"in hex":                 hex.EncodeToString([]byte(password)),
		"in upper hex":           strings.ToUpper(hex.EncodeToString([]byte(password))),
		"in base64":              base64.StdEncoding.EncodeToString([]byte(password)),
		"in base64 for URLs":     base64.RawURLEncoding.EncodeToString([]byte(password)),
		"in base64 with a user":  base64.StdEncoding.EncodeToString([]byte("owner:" + password)),
		"in base64 within more":  base64.StdEncoding.EncodeToString([]byte("it is " + password + ", is it not")),
	}
}

// TestARegistryRepeatsCredentials has a registry repeat the password wherever an
// error could take it from, in every form, and looks at the whole chain of errors, and
// at what is told of a registry that cannot be reached.
func TestARegistryRepeatsCredentials(t *testing.T) {
	const password = "tr0ub4dor/&3 correct-horse"
	b := images.MustBuild(t, images.LittleEndian, image.BuildOptions{})
	words := func(status int, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": "DENIED", "message": text}}})
		}
	}
	places := map[string]func(echo string) func(http.ResponseWriter, *http.Request){
		"the words of a refusal": func(echo string) func(http.ResponseWriter, *http.Request) { return words(http.StatusForbidden, echo) },
		"the end of a long refusal": func(echo string) func(http.ResponseWriter, *http.Request) {
			return words(http.StatusBadRequest, strings.Repeat("a", 430)+" "+echo)
		},
		"the path of a redirect": func(echo string) func(http.ResponseWriter, *http.Request) {
			return redirect("http://blobs.example.com/" + url.PathEscape(echo))
		},
		"the host of a redirect": func(echo string) func(http.ResponseWriter, *http.Request) {
			return redirect("http://" + strings.Map(hostly, echo) + ".example.com/")
		},
		"a redirect that is no URL": func(echo string) func(http.ResponseWriter, *http.Request) { return redirect("http://[" + echo) },
		"a scheme that is none": func(echo string) func(http.ResponseWriter, *http.Request) {
			return redirect("x" + strings.Map(hostly, echo) + "://host/")
		},
		"the digest in the header":     answerHeader("Docker-Content-Digest"),
		"the media type in the header": answerHeader("Content-Type"),
		"the service that has tokens": func(echo string) func(http.ResponseWriter, *http.Request) {
			return challenge("https://tokens.invalid/" + url.PathEscape(echo))
		},
		"the media type in the content": func(echo string) func(http.ResponseWriter, *http.Request) {
			return manifest(map[string]any{"schemaVersion": 2, "mediaType": echo, "layers": []any{}})
		},
		"a digest in the content": func(echo string) func(http.ResponseWriter, *http.Request) {
			return manifest(map[string]any{"schemaVersion": 2, "layers": []any{map[string]any{"mediaType": types.OCILayer, "size": 1, "digest": echo}}})
		},
	}
	for place, answer := range places {
		for form, echo := range echoed(password) {
			t.Run(place+" "+form, func(t *testing.T) {
				f := fake(b)
				f.first = func(w http.ResponseWriter, r *http.Request) bool {
					if _, _, shown := r.BasicAuth(); !shown {
						w.Header().Set("WWW-Authenticate", "Basic")
						w.WriteHeader(http.StatusUnauthorized)
						return true
					}
					if r.URL.Path != "/v2/" {
						answer(echo)(w, r)
					}
					return true
				}
				srv := images.Serve(t, f)
				var told atomic.Pointer[error]
				for _, withhold := range []bool{false, true} {
					c := newTestClient(t, func(o *Options) {
						o.Keychain, o.Attempts = keychain{"owner", password}, 1
						if withhold {
							o.Unreachable = func(_ string, cause error) { told.Store(&cause) }
						}
					})
					_, err := c.Resolve(t.Context(), srv.Host+"/bpf/x:v1")
					if err == nil {
						_, err = c.Pull(t.Context(), resolveBy(t, srv.Host))
					}
					notRepeated(t, err, password, echo)
					r := image.Resolved{Registry: srv.Host, Repository: "bpf/x", Digest: b.Digest()}
					_, err = c.Pull(t.Context(), r)
					notRepeated(t, err, password, echo)
					attached, err := c.Attachments(r)
					if err != nil {
						t.Fatal(err)
					}
					if _, err = attached.Tagged(t.Context(), "sha256-0.sig"); err != nil {
						notRepeated(t, err, password, echo)
					}
					if cause := told.Load(); cause != nil {
						notRepeated(t, *cause, password, echo)
					}
				}
			})
		}
	}
}

// resolveBy is an image whose digest is that of whatever the fake says.
func resolveBy(t *testing.T, host string) image.Resolved {
	t.Helper()
	return image.Resolved{Registry: host, Repository: "bpf/x", Digest: "sha256:" + strings.Repeat("0", 64)}
}

func hostly(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
		return r
	}
	return -1
}

func redirect(to string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Location"] = []string{to}
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

func answerHeader(name string) func(echo string) func(http.ResponseWriter, *http.Request) {
	return func(echo string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("1", 64))
			w.Header().Set(name, echo)
			_, _ = w.Write([]byte(`{"schemaVersion":2}`))
		}
	}
}

func challenge(realm string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// manifest answers with one whose digest is told truly.
func manifest(content map[string]any) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, _ := json.Marshal(content)
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		w.Header().Set("Docker-Content-Digest", image.Sum(body).String())
		_, _ = w.Write(body)
	}
}

// notRepeated looks for a secret in every error of a chain, in the form in which it was
// echoed and as it is.
func notRepeated(t *testing.T, err error, password, echo string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%#v", err)} {
		for _, secret := range []string{password, echo, url.PathEscape(echo)} {
			for _, piece := range []string{secret, secret[:12]} {
				if strings.Contains(text, piece) {
					t.Errorf("the error repeats %q: %s", piece, text)
				}
			}
		}
	}
	switch wrapped := err.(type) { //nolint:errorlint // Every link of the chain is looked at by itself.
	case interface{ Unwrap() []error }:
		for _, inner := range wrapped.Unwrap() {
			notRepeated(t, inner, password, echo)
		}
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			notRepeated(t, inner, password, echo)
		}
	}
}

// TestADigestRepeatsCredentials has a registry list a referrer by a digest that is the
// password in hex, and reject to hand it out.
func TestADigestRepeatsCredentials(t *testing.T) {
	password := strings.Repeat("s3cr3t-", 5)[:32]
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString([]byte(password))}
	srv := images.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, shown := r.BasicAuth(); !shown {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Path, digest.Hex) {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	c := newTestClient(t, func(o *Options) { o.Keychain, o.Attempts = keychain{"owner", password}, 1 })
	attached, err := c.Attachments(resolveBy(t, srv.Host))
	if err != nil {
		t.Fatal(err)
	}
	_, ofManifest := attached.Manifest(t.Context(), digest)
	_, ofBlob := attached.Blob(t.Context(), v1.Descriptor{Digest: digest, Size: 3})
	for _, err := range []error{ofManifest, ofBlob} {
		notRepeated(t, err, password, digest.Hex)
		if !errors.Is(err, image.ErrUnavailable) || !strings.Contains(err.Error(), srv.Host+"/bpf/x") {
			t.Errorf("it is told as %v", err)
		}
	}
}

// TestASignatureRepeatsCredentials: of what is attached to an image, much is shown.
func TestASignatureRepeatsCredentials(t *testing.T) {
	const password = "correct-horse-battery"
	c := newTestClient(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.example.com/v2/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("owner", password)
	c.secrets.Note(req)
	for content, repeats := range map[string]bool{
		`{"type":"` + password + `"}`: true,
		`{"payload":"` + base64.StdEncoding.EncodeToString([]byte(`{"x":"`+password+`"}`)) + `"}`: true,
		`{"digest":"` + hex.EncodeToString([]byte(password)) + `"}`:                               true,
		`{"type":"correct-horse"}`: false,
		`{}`:                       false,
	} {
		_, err := (&Attachments{secrets: c.secrets}).discreet([]byte(content), nil)
		if errors.Is(err, image.ErrMalformed) != repeats {
			t.Errorf("%s: %v, want an error: %v", content, err, repeats)
		}
	}
}
