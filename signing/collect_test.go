package signing_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	ggcrstatic "github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

// put writes layers under a tag of the image's repository, or as a referrer.
func put(t *testing.T, r image.Resolved, tag string, subject *v1.Descriptor, layers ...mutate.Addendum) {
	t.Helper()
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layers...)
	if err != nil {
		t.Fatal(err)
	}
	if subject != nil {
		img = mutate.Subject(img, *subject).(v1.Image)
	}
	repo, err := name.NewRepository(r.Registry + "/" + r.Repository)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var ref name.Reference = repo.Digest(digest.String())
	if tag != "" {
		ref = repo.Tag(tag)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
}

func signatureTag(t *testing.T, r image.Resolved) string {
	t.Helper()
	h, err := v1.NewHash(r.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return collect.SignatureTag(h)
}

func simpleLayer(content []byte, sig string) mutate.Addendum {
	return mutate.Addendum{
		Layer:       ggcrstatic.NewLayer(content, ctypes.SimpleSigningMediaType),
		Annotations: map[string]string{static.SignatureAnnotationKey: sig},
	}
}

// wordyLayer has more annotations than a manifest may have values.
func wordyLayer() mutate.Addendum {
	l := simpleLayer([]byte("{}"), "AAAA")
	for i := range 10000 {
		l.Annotations[fmt.Sprint(i)] = ""
	}
	return l
}

func TestOneHundredSignatures(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	key, alice := newKey(t, "alice")
	signed(t, r, key, sign.Options{})
	good := collected(t, r).Artifacts[0]
	var layers []mutate.Addendum
	for i := range 100 {
		layers = append(layers, simpleLayer(simplePayload(t, r.Digest, map[string]any{"n": fmt.Sprint(i)}), "AAAA"))
	}
	// Cosign appends what is new.
	layers = append(layers, simpleLayer(good.Content, good.Annotations[static.SignatureAnnotationKey]))
	put(t, r, signatureTag(t, r), nil, layers...)
	srv.asked()
	c := collected(t, r)
	if asked := srv.asked(); len(asked) > 4+64 {
		t.Errorf("took %d requests", len(asked))
	}
	e := verify(t, trustOf(t, alice), c)
	if got := e.Signers(); !slices.Equal(got, []string{"alice"}) {
		t.Errorf("signed by %v, want alice", got)
	}
	if len(c.Artifacts) != 64 || len(c.Skipped) != 1 || !strings.Contains(c.Skipped[0], "37 of 101 layers") {
		t.Errorf("got %d artifacts, skipped %v", len(c.Artifacts), c.Skipped)
	}
	if len(e.Rejected) != 64 {
		t.Errorf("got %d rejections, want the 63 bad ones and the one that tells of more", len(e.Rejected))
	}
}

func TestOneHundredReferrers(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	subject := descriptorOf(t, r)
	for i := range 100 {
		put(t, r, "", &subject, mutate.Addendum{Layer: ggcrstatic.NewLayer([]byte(fmt.Sprint(i)), "application/vnd.dev.sigstore.bundle.v0.3+json")})
	}
	srv.asked()
	c := collected(t, r)
	if asked := srv.asked(); len(asked) > 4+2*64 {
		t.Errorf("took %d requests", len(asked))
	}
	if len(c.Artifacts) != 64 || len(c.Skipped) != 1 || !strings.Contains(c.Skipped[0], "36 of 100 referrers") {
		t.Errorf("got %d artifacts, skipped %v", len(c.Artifacts), c.Skipped)
	}
	_, alice := newKey(t, "alice")
	if e := verify(t, trustOf(t, alice), c); len(e.Signatures) != 0 || len(e.Rejected) != 65 {
		t.Errorf("got %d signatures and %d rejections", len(e.Signatures), len(e.Rejected))
	}
}

func descriptorOf(t *testing.T, r image.Resolved) v1.Descriptor {
	t.Helper()
	d, err := r.ByDigest()
	if err != nil {
		t.Fatal(err)
	}
	desc, err := remote.Head(d)
	if err != nil {
		t.Fatal(err)
	}
	return *desc
}

func TestWhatIsMalformedIsSkipped(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 5<<20)
	for sentence, c := range map[string]struct {
		put  func(*testing.T, image.Resolved)
		want string
	}{
		"a layer that is too big": {func(t *testing.T, r image.Resolved) {
			put(t, r, signatureTag(t, r), nil, simpleLayer(big, "AAAA"))
		}, "5242880 bytes"},
		"a tag's manifest of too many values": {func(t *testing.T, r image.Resolved) {
			put(t, r, signatureTag(t, r), nil, wordyLayer())
		}, "it is not a manifest"},
		"a referrer's manifest of too many values": {func(t *testing.T, r image.Resolved) {
			subject := descriptorOf(t, r)
			put(t, r, "", &subject, wordyLayer())
		}, "it is not a manifest"},
		"a layer of another kind": {func(t *testing.T, r image.Resolved) {
			put(t, r, signatureTag(t, r), nil, mutate.Addendum{Layer: ggcrstatic.NewLayer([]byte("{}"), ctypes.SPDXJSONMediaType)})
		}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := pushed(t, newRegistry(t, true))
			c.put(t, r)
			got := collected(t, r)
			if len(got.Artifacts) != 0 || (c.want == "") != (len(got.Skipped) == 0) || !strings.Contains(strings.Join(got.Skipped, " "), c.want) {
				t.Errorf("got %+v, want nothing, with the reason %q", got, c.want)
			}
		})
	}
}

func TestARegistryThatMisbehaves(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	text := func(content string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIImageIndex))
			_, _ = io.WriteString(w, content)
		}
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for sentence, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		// skipped is what is said where it is no error.
		skipped string
		kind    error
	}{
		"referrers answers 500":           {"/referrers/", status(500), "", image.ErrUnavailable},
		"referrers answers 401":           {"/referrers/", status(401), "", image.ErrUnauthorized},
		"referrers answers garbage":       {"/referrers/", text("<html>"), "", image.ErrUnavailable},
		"referrers never answers":         {"/referrers/", hang, "", context.DeadlineExceeded},
		"the signature tag answers 500":   {".sig", status(500), "", image.ErrUnavailable},
		"the signature tag never answers": {".sig", hang, "", context.DeadlineExceeded},
		"the signature tag is garbage":    {".sig", text("<html>"), "it is not a manifest", nil},
		"the signature tag is enormous":   {".sig", text(strings.Repeat(" ", 9<<20)), "", image.ErrUnavailable},
		"the attestation tag answers 503": {".att", status(503), "", image.ErrUnavailable},
		"a payload answers 500":           {"/blobs/", status(500), "", image.ErrUnavailable},
		"a payload is missing":            {"/blobs/", status(404), "its content could not be had", nil},
		"a payload is another":            {"/blobs/", text("{}"), "", image.ErrUnavailable},
		"a payload never ends":            {"/blobs/", endless, "", image.ErrUnavailable},
		"a payload never answers":         {"/blobs/", hang, "", context.DeadlineExceeded},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			srv := newRegistry(t, true)
			r := pushed(t, srv)
			key, _ := newKey(t, "alice")
			signed(t, r, key, sign.Options{Annotations: map[string]string{"env": "prod"}})
			srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
				if strings.Contains(req.URL.Path, c.path) {
					c.answer(w, req)
					return true
				}
				return false
			})
			limit := 10 * time.Second
			if errors.Is(c.kind, context.DeadlineExceeded) {
				limit = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			got, err := collect.All(ctx, newClient(t), r)
			if !errors.Is(err, c.kind) {
				t.Errorf("got error %v, want %v", err, c.kind)
			}
			if err == nil && !strings.Contains(strings.Join(got.Skipped, " "), c.skipped) {
				t.Errorf("skipped %v, want %q", got.Skipped, c.skipped)
			}
		})
	}
}

func endless(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
			return
		}
	}
}

func TestAReferrerOfAnotherImage(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	key, alice := newKey(t, "alice")
	signed(t, r, key, sign.Options{Bundle: true})
	other := r
	srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/referrers/") || !strings.HasSuffix(req.URL.Path, other.Digest) {
			return false
		}
		// The registry lists another image's referrer under this one.
		req.URL.Path = strings.Replace(req.URL.Path, other.Digest, r.Digest, 1)
		srv.handler.ServeHTTP(w, req)
		return true
	})
	other = pushedAs(t, srv, "bpf/counter:v2")
	c := collected(t, other)
	if len(c.Artifacts) != 0 || !strings.Contains(strings.Join(c.Skipped, " "), "its subject is another image") {
		t.Errorf("got %+v", c)
	}
	if e := verify(t, trustOf(t, alice), c); len(e.Signatures) != 0 {
		t.Errorf("it counts: %+v", e)
	}
}

func TestCollectedIsKeptAndVerifiedAgain(t *testing.T) {
	for where, r := range places(t) {
		t.Run(where, func(t *testing.T) {
			key, alice := newKey(t, "alice")
			signed(t, r, key, sign.Options{})
			signed(t, r, key, sign.Options{Bundle: true})
			first := collected(t, r)
			second := collected(t, r)
			kept, err := json.Marshal(first)
			if err != nil {
				t.Fatal(err)
			}
			var back collect.Collected
			if err := json.Unmarshal(kept, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(first, back); diff != "" {
				t.Errorf("kept and read again (-want +got):\n%s", diff)
			}
			if a, b := hashOf(t, second), hashOf(t, back); a != b {
				t.Errorf("collected twice, the hashes are %s and %s", a, b)
			}
			if e := verify(t, trustOf(t, alice), back); len(e.Signatures) != 1 || e.Signers()[0] != "alice" {
				t.Errorf("got %+v", e)
			}
			alice.Spec.Revoked = true
			e := verify(t, trustOf(t, alice), back)
			if len(e.Signatures) != 0 || !slices.Equal(e.Revoked, []string{"alice"}) {
				t.Errorf("revoked, got %+v", e)
			}
		})
	}
}

func hashOf(t *testing.T, c collect.Collected) string {
	t.Helper()
	h, err := c.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestCollectRefusesWhatIsNotResolved(t *testing.T) {
	for _, digest := range []string{"", "sha256:12", "sha512:" + strings.Repeat("1", 128), "v1"} {
		r := image.Resolved{Reference: "registry.example.com/bpf/counter:v1", Registry: "registry.example.com", Repository: "bpf/counter", Digest: digest}
		if _, err := collect.All(t.Context(), newClient(t), r); err == nil || !strings.Contains(err.Error(), "resolve the reference first") {
			t.Errorf("digest %q: got error %v", digest, err)
		}
		if _, err := new(signing.Trust).Verify(t.Context(), collect.Collected{Digest: digest}, time.Now()); err == nil {
			t.Errorf("digest %q: verified", digest)
		}
	}
}

func TestLayoutsThatAreDamaged(t *testing.T) {
	for sentence, damage := range map[string]func(*testing.T, string){
		"index.json is garbage":  func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "index.json"), "{") },
		"index.json is missing":  func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "index.json")) },
		"every blob was altered": func(t *testing.T, dir string) { alterBlobs(t, dir) },
	} {
		t.Run(sentence, func(t *testing.T) {
			r := laidOut(t)
			key, _ := newKey(t, "alice")
			signed(t, r, key, sign.Options{})
			signed(t, r, key, sign.Options{Bundle: true})
			damage(t, r.Repository)
			if c, err := collect.All(t.Context(), newClient(t), r); err == nil && len(c.Artifacts) > 0 {
				t.Errorf("got %+v, want an error or nothing", c)
			}
		})
	}
}

func overwrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func alterBlobs(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		overwrite(t, filepath.Join(dir, "blobs", "sha256", e.Name()), "{}")
	}
}
