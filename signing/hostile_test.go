package signing_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// blobOf writes a blob beside the image, and describes it.
func blobOf(t *testing.T, r image.Resolved, content []byte, kind types.MediaType) v1.Descriptor {
	t.Helper()
	sum := sha256.Sum256(content)
	d := v1.Descriptor{MediaType: kind, Size: int64(len(content)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	if err := attachmentsOf(t, r).PutBlob(t.Context(), d, content); err != nil {
		t.Fatal(err)
	}
	return d
}

func attachmentsOf(t *testing.T, r image.Resolved) *registry.Attachments {
	t.Helper()
	a, err := newClient(t).Attachments(r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refer makes a manifest with these layers refer to the image, whatever they say.
func refer(t *testing.T, r image.Resolved, change func(*v1.Manifest), layers ...v1.Descriptor) {
	t.Helper()
	subject := descriptorOf(t, r)
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Subject: &subject, Layers: layers,
		Config: blobOf(t, r, []byte("{}"), "application/vnd.oci.empty.v1+json"),
	}
	if change != nil {
		change(&m)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	d := v1.Descriptor{MediaType: m.MediaType, Size: int64(len(raw)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	if err := attachmentsOf(t, r).PutManifest(t.Context(), d, raw, ""); err != nil {
		t.Fatal(err)
	}
}

// referrersOf are what the registry behind lists.
func referrersOf(t *testing.T, c *counting, req *http.Request) v1.IndexManifest {
	t.Helper()
	recorder := httptest.NewRecorder()
	c.handler.ServeHTTP(recorder, req)
	var list v1.IndexManifest
	if err := json.Unmarshal(recorder.Body.Bytes(), &list); err != nil {
		t.Error(err)
	}
	return list
}

func answerList(t *testing.T, w http.ResponseWriter, list v1.IndexManifest) {
	t.Helper()
	w.Header().Set("Content-Type", string(types.OCIImageIndex))
	if err := json.NewEncoder(w).Encode(list); err != nil {
		t.Error(err)
	}
}

// listedLast has the registry list what refers to the image now after all else.
func listedLast(t *testing.T, c *counting, r image.Resolved) {
	t.Helper()
	first, _, err := attachmentsOf(t, r).Referrers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := func(d v1.Descriptor) int {
		return slices.IndexFunc(first, func(f v1.Descriptor) bool { return f.Digest == d.Digest })
	}
	c.answer(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/referrers/") {
			return false
		}
		list := referrersOf(t, c, req)
		slices.SortStableFunc(list.Manifests, func(a, b v1.Descriptor) int { return cmp.Compare(last(a), last(b)) })
		answerList(t, w, list)
		return true
	})
}

func noise(t *testing.T, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestASignedImageStaysSigned holds that what others write beside a signed image
// does not keep its signature from being found, nor makes the registry look down.
func TestASignedImageStaysSigned(t *testing.T) {
	for sentence, c := range map[string]struct {
		beside func(*testing.T, *counting, image.Resolved)
		// requests is how many it takes at most.
		requests int
	}{
		"a bundle that is longer than its manifest says": {func(t *testing.T, _ *counting, r image.Resolved) {
			d := blobOf(t, r, noise(t, 3<<20), bundleType)
			d.Size = 10
			refer(t, r, nil, d)
		}, 11},
		"a bundle that is shorter than its manifest says": {func(t *testing.T, _ *counting, r image.Resolved) {
			d := blobOf(t, r, noise(t, 100), bundleType)
			d.Size = 1 << 20
			refer(t, r, nil, d)
		}, 10},
		"the signature's own bundle, said to be of another size": {func(t *testing.T, _ *counting, r image.Resolved) {
			for _, size := range []int64{1, 4 << 20} {
				for _, a := range collected(t, r).Artifacts {
					d := blobOf(t, r, a.Content, bundleType)
					d.Size = size
					refer(t, r, nil, d)
				}
			}
		}, 16},
		"a manifest that is longer than is read": {func(t *testing.T, _ *counting, r image.Resolved) {
			refer(t, r, func(m *v1.Manifest) { m.Annotations = map[string]string{"a": strings.Repeat("x", 3<<19)} })
		}, 8},
		"a manifest by another hash": {func(t *testing.T, srv *counting, r image.Resolved) {
			srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
				if !strings.Contains(req.URL.Path, "/referrers/") {
					return false
				}
				recorder := httptest.NewRecorder()
				srv.handler.ServeHTTP(recorder, req)
				w.Header().Set("Content-Type", string(types.OCIImageIndex))
				_, _ = w.Write([]byte(strings.Replace(recorder.Body.String(), "[", `[{"digest":"sha512:`+strings.Repeat("a", 128)+`"},`, 1)))
				return true
			})
		}, 6},
		"sixty-four lists of what is in the image, before it": {func(t *testing.T, _ *counting, r image.Resolved) {
			for i := range 64 {
				refer(t, r, func(m *v1.Manifest) { m.Config.MediaType = "application/spdx+json" }, blobOf(t, r, fmt.Append(nil, i), "application/spdx+json"))
			}
		}, 4 + 1 + 65},
		"three large bundles": {func(t *testing.T, _ *counting, r image.Resolved) {
			for range 3 {
				refer(t, r, func(m *v1.Manifest) { m.Config.MediaType = bundleType }, blobOf(t, r, noise(t, 3<<20), bundleType))
			}
		}, 4 + 1 + 2*3},
		"sixty-three manifests with sixty-four layers each": {func(t *testing.T, _ *counting, r image.Resolved) {
			var layers []v1.Descriptor
			for i := range 64 {
				layers = append(layers, blobOf(t, r, fmt.Append(nil, i), bundleType))
			}
			for i := range 63 {
				refer(t, r, func(m *v1.Manifest) { m.Annotations = map[string]string{"n": fmt.Sprint(i)} }, layers...)
			}
		}, 4 + 64 + 65},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			srv := newRegistry(t, true)
			r := pushed(t, srv)
			alice := newHand(t, "alice")
			signs(sign.Options{Bundle: true})(t, r, alice)
			listedLast(t, srv, r)
			c.beside(t, srv, r)
			srv.asked()
			client, err := registry.NewClient(registry.Options{Attempts: 1, ManifestBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			got, err := collect.All(t.Context(), client, r)
			if err != nil {
				t.Fatal(err)
			}
			if asked := srv.asked(); len(asked) > c.requests {
				t.Errorf("took %d requests, want %d at most:\n%s", len(asked), c.requests, strings.Join(asked, "\n"))
			}
			if e := verify(t, trustOf(t, alice.signer), got); !slices.Equal(e.Signers(), []string{"alice"}) {
				t.Errorf("signed by %v; skipped %v", e.Signers(), got.Skipped)
			}
		})
	}
}

// TestCandidatesAreCounted holds that what is tried is bounded for all manifests
// together: each candidate is tried with every signer.
func TestCandidatesAreCounted(t *testing.T) {
	for sentence, c := range map[string]struct {
		annotated bool
		want      int
	}{
		"equal ones are one":                {false, 1},
		"as many as two tags hold, at most": {true, 128},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			srv := newRegistry(t, true)
			r := pushed(t, srv)
			d := blobOf(t, r, simplePayload(t, r.Digest, nil), "application/vnd.dev.cosign.simplesigning.v1+json")
			for i := range 64 {
				layers := slices.Repeat([]v1.Descriptor{d}, 64)
				for j := range layers {
					layers[j].Annotations = map[string]string{"dev.cosignproject.cosign/signature": "AAAA", "n": fmt.Sprint(j)}
					if c.annotated {
						layers[j].Annotations["dev.cosignproject.cosign/signature"] = fmt.Sprintf("%08d", 64*i+j)
					}
				}
				refer(t, r, func(m *v1.Manifest) { m.Annotations = map[string]string{"n": fmt.Sprint(i)} }, layers...)
			}
			got := collected(t, r)
			if len(got.Artifacts) != c.want {
				t.Errorf("%d candidates, want %d; skipped %v", len(got.Artifacts), c.want, got.Skipped)
			}
			if (c.want == 128) != strings.Contains(strings.Join(got.Skipped, " "), "3968 of 4096 layers") {
				t.Errorf("skipped %v", got.Skipped)
			}
		})
	}
}

// TestWhatIsCollectedIsBoundedInBytes has little that was pushed be much to keep: a
// large blob that many layers name, each with annotations of its own, and annotations
// without end. The signature beside it counts.
func TestWhatIsCollectedIsBoundedInBytes(t *testing.T) {
	const (
		attestation = "application/vnd.dsse.envelope.v1+json"
		certificate = "dev.sigstore.cosign/certificate"
		signature   = "dev.cosignproject.cosign/signature"
		chain       = "dev.sigstore.cosign/chain"
	)
	// layers are as many as are read of one manifest, each with annotations of its own.
	layers := func(d v1.Descriptor, annotations func(i int) map[string]string) []v1.Descriptor {
		all := slices.Repeat([]v1.Descriptor{d}, 64)
		for i := range all {
			all[i].Annotations = annotations(i)
		}
		return all
	}
	for sentence, c := range map[string]struct {
		push    func(*testing.T, image.Resolved)
		skipped string
	}{
		"one blob of four MiB, named by 256 layers": {func(t *testing.T, r image.Resolved) {
			blob := blobOf(t, r, bytes.Repeat([]byte("x"), 4<<20), attestation)
			for i := range 2 {
				refer(t, r, nil, layers(blob, func(j int) map[string]string {
					return map[string]string{certificate: fmt.Sprint(i, j)}
				})...)
			}
			for _, tag := range []string{".att", ".sig"} {
				tagAs(t, r, tag, layers(blob, func(j int) map[string]string {
					return map[string]string{certificate: fmt.Sprint(tag, j)}
				})...)
			}
		}, "are read together"},
		"a MiB of annotations beside each of 18 bundles": {func(t *testing.T, r image.Resolved) {
			crowd(t, r, 3, bundleType, map[string]string{certificate: strings.Repeat("x", 1<<20)})
		}, ""},
		"a MiB of annotations beside each of 18 attestations": {func(t *testing.T, r image.Resolved) {
			crowd(t, r, 3, attestation, map[string]string{certificate: strings.Repeat("x", 1<<20)})
		}, certificate + " has 1048576 bytes"},
		"the longest annotations that are read, beside each of 90 attestations": {func(t *testing.T, r image.Resolved) {
			long := strings.Repeat("x", 64<<10)
			crowd(t, r, 15, attestation, map[string]string{certificate: long, chain: long, signature: long})
		}, "are read together"},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := pushed(t, newRegistry(t, true))
			alice := newHand(t, "alice")
			c.push(t, r)
			signs(sign.Options{Bundle: true})(t, r, alice)
			got := collected(t, r)
			size := 0
			for _, a := range got.Artifacts {
				size += len(a.Content)
				for key, value := range a.Annotations {
					size += len(key) + len(value)
				}
			}
			// The referrers, and the tags.
			if most := 2 * 8 << 20; size > most {
				t.Errorf("%d artifacts take %d bytes, want no more than %d", len(got.Artifacts), size, most)
			}
			if n := got.Bytes(); n < size {
				t.Errorf("%d bytes count for %d", size, n)
			}
			if skipped := strings.Join(got.Skipped, "\n"); !strings.Contains(skipped, c.skipped) {
				t.Errorf("skipped %s, want %q", skipped, c.skipped)
			}
			if e := verify(t, trustOf(t, alice.signer), got); !slices.Equal(e.Signers(), []string{"alice"}) {
				t.Errorf("signed by %v; skipped %v", e.Signers(), got.Skipped)
			}
		})
	}
}

// crowd has six manifests refer to the image, with so many layers each and annotations
// beside each layer.
func crowd(t *testing.T, r image.Resolved, layers int, kind types.MediaType, annotations map[string]string) {
	t.Helper()
	for i := range 6 {
		var all []v1.Descriptor
		for j := range layers {
			d := blobOf(t, r, fmt.Appendf(nil, "layer %d of %d", j, i), kind)
			d.Annotations = annotations
			all = append(all, d)
		}
		refer(t, r, nil, all...)
	}
}

// tagAs makes cosign's tag with this ending name a manifest with these layers.
func tagAs(t *testing.T, r image.Resolved, ending string, layers ...v1.Descriptor) {
	t.Helper()
	raw, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers,
		Config: blobOf(t, r, []byte("{}"), "application/vnd.oci.empty.v1+json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	d := v1.Descriptor{MediaType: types.OCIManifestSchema1, Size: int64(len(raw)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	if err := attachmentsOf(t, r).PutManifest(t.Context(), d, raw, strings.TrimSuffix(signatureTag(t, r), ".sig")+ending); err != nil {
		t.Fatal(err)
	}
}

// TestAHashHoldsNothingTwice has many artifacts share one content.
func TestAHashHoldsNothingTwice(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 4<<20)
	c := collect.Collected{Digest: thisImage}
	for i := range 64 {
		c.Artifacts = append(c.Artifacts, collect.Artifact{Kind: collect.LegacyAttestation, Origin: fmt.Sprint(i), Content: content})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	first := hashOf(t, c)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("took %d bytes", took)
	}
	c.Artifacts[63].Content = slices.Clone(content)
	if got := hashOf(t, c); got != first {
		t.Error("it depends on where the contents lie")
	}
	for sentence, change := range map[string]func(*collect.Artifact){
		"another content":         func(a *collect.Artifact) { a.Content = append(bytes.Clone(content[1:]), 'y') },
		"the beginning of it":     func(a *collect.Artifact) { a.Content = content[:len(content)-1] },
		"no content":              func(a *collect.Artifact) { a.Content = nil },
		"another origin":          func(a *collect.Artifact) { a.Origin = "another" },
		"another kind":            func(a *collect.Artifact) { a.Kind = collect.Bundle },
		"an annotation beside it": func(a *collect.Artifact) { a.Annotations = map[string]string{"a": "b"} },
	} {
		changed := c
		changed.Artifacts = slices.Clone(c.Artifacts)
		change(&changed.Artifacts[0])
		if hashOf(t, changed) == first {
			t.Errorf("%s: the hash is the same", sentence)
		}
	}
}

func TestEverySignerOfOnePayloadCounts(t *testing.T) {
	r := pushed(t, newRegistry(t, true))
	alice, bob := newHand(t, "alice"), newHand(t, "bob")
	for _, by := range []hand{alice, bob, alice} {
		signs(sign.Options{})(t, r, by)
	}
	if e := verify(t, trustOf(t, alice.signer, bob.signer), collected(t, r)); !slices.Equal(e.Signers(), []string{"alice", "bob"}) {
		t.Errorf("signed by %v", e.Signers())
	}
}

func TestRegistriesWithoutTheReferrersAPI(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			srv := newRegistry(t, false)
			r := pushed(t, srv)
			srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
				if strings.Contains(req.URL.Path, "/referrers/") {
					w.WriteHeader(status)
					return true
				}
				return false
			})
			alice := newHand(t, "alice")
			signs(sign.Options{Bundle: true})(t, r, alice)
			srv.asked()
			got := collected(t, r)
			if asked := srv.asked(); len(asked) != 7 {
				t.Errorf("took %d requests, want 7: %v", len(asked), asked)
			}
			if e := verify(t, trustOf(t, alice.signer), got); !slices.Equal(e.Signers(), []string{"alice"}) {
				t.Errorf("signed by %v; skipped %v", e.Signers(), got.Skipped)
			}
		})
	}
}

// paged lists one referrer a page, after so many pages without any.
func paged(t *testing.T, c *counting, empty int, next func(page int) string) {
	c.answer(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/referrers/") {
			return false
		}
		page := 0
		_, _ = fmt.Sscanf(req.URL.Query().Get("page"), "%d", &page)
		list := referrersOf(t, c, req)
		// The registry lists them in another order each time.
		slices.SortFunc(list.Manifests, func(a, b v1.Descriptor) int { return strings.Compare(a.Digest.Hex, b.Digest.Hex) })
		at := page - empty
		if at < len(list.Manifests)-1 {
			w.Header().Set("Link", fmt.Sprintf(`<%s>; rel="next"`, next(page+1)))
		}
		if at < 0 || at >= len(list.Manifests) {
			list.Manifests = nil
		} else {
			list.Manifests = list.Manifests[at : at+1]
		}
		answerList(t, w, list)
		return true
	})
}

func TestPagesOfReferrers(t *testing.T) {
	own := func(page int) string { return fmt.Sprintf("?page=%d", page) }
	for sentence, c := range map[string]struct {
		empty   int
		next    func(int) string
		signers []string
		skipped string
		kind    error
		// lists is how often a page is asked for.
		lists int
	}{
		"the signature is on a later page": {5, own, []string{"alice"}, "", nil, 7},
		"on the last page that is read":    {14, own, []string{"alice"}, "", nil, 16},
		"on a page after it":               {16, own, nil, "longer than is read", nil, 16},
		"pages without end":                {1 << 20, own, nil, "longer than is read", nil, 16},
		"the next page is another's": {
			5, func(int) string { return "http://127.0.0.1:1/v2/bpf/counter/referrers/x?page=1" }, nil, "", image.ErrUnavailable, 1,
		},
		"the next page is no list":          {5, func(int) string { return "/v2/bpf/counter/manifests/v1" }, nil, "", image.ErrUnavailable, 1},
		"the next page is none that can be": {5, func(int) string { return "::" }, nil, "", image.ErrUnavailable, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			srv := newRegistry(t, true)
			r := pushed(t, srv)
			alice, bob := newHand(t, "alice"), newHand(t, "bob")
			signs(sign.Options{Bundle: true})(t, r, alice)
			signs(sign.Options{Bundle: true})(t, r, bob)
			paged(t, srv, c.empty, c.next)
			srv.asked()
			got, err := collect.All(t.Context(), newClient(t), r)
			if !errors.Is(err, c.kind) {
				t.Fatalf("got error %v, want %v", err, c.kind)
			}
			lists := 0
			for _, asked := range srv.asked() {
				if strings.Contains(asked, "/referrers/") {
					lists++
				}
			}
			if lists != c.lists {
				t.Errorf("asked for %d pages, want %d", lists, c.lists)
			}
			if err != nil {
				return
			}
			if e := verify(t, trustOf(t, alice.signer), got); !slices.Equal(e.Signers(), c.signers) {
				t.Errorf("signed by %v, want %v", e.Signers(), c.signers)
			}
			if (c.skipped == "") != (got.Truncated == "") {
				t.Errorf("truncated %q", got.Truncated)
			}
			if skipped := strings.Join(got.Skipped, " "); (c.skipped == "") != (skipped == "") || !strings.Contains(skipped, c.skipped) {
				t.Errorf("skipped %q, want %q", skipped, c.skipped)
			}
		})
	}
}

// TestABlobThatIsNotHandedOut holds that one bad blob hides no other one from who
// asks whether somebody signed, and is an error to who asks for everything.
func TestABlobThatIsNotHandedOut(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	alice, bob := newHand(t, "alice"), newHand(t, "bob")
	signs(sign.Options{Bundle: true})(t, r, alice)
	lost := blobOf(t, r, noise(t, 100), bundleType)
	refer(t, r, nil, lost)
	srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, lost.Digest.String()) {
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	var blob *collect.BlobError
	if _, err := collect.All(t.Context(), newClient(t), r); !errors.As(err, &blob) || !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("Collect: %v", err)
	}
	if _, err := collect.Until(t.Context(), newClient(t), r, nil, counts(t, trustOf(t, bob.signer))); !errors.As(err, &blob) {
		t.Errorf("CollectUntil where nobody counts: %v", err)
	}
	part, err := collect.Until(t.Context(), newClient(t), r, nil, counts(t, trustOf(t, alice.signer)))
	if err != nil || !part.Partial || !part.Unread {
		t.Fatalf("CollectUntil: %+v, %v", part, err)
	}
	// Nobody is told that there is nothing else.
	if _, err := collect.Complete(t.Context(), newClient(t), r, part, nil); !errors.As(err, &blob) {
		t.Errorf("Complete: %v", err)
	}
	srv.answer(nil)
	whole, err := collect.Complete(t.Context(), newClient(t), r, part, nil)
	if err != nil || whole.Partial || whole.Unread || len(whole.Artifacts) != 2 {
		t.Errorf("Complete afterwards: %+v, %v", whole, err)
	}
}

// TestABlobThatIsNotHandedOutIsNoExcuse has the tags not be read at all after a blob was not handed out: what was read is not all
// there is.
func TestABlobThatIsNotHandedOutIsNoExcuse(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	lost := blobOf(t, r, noise(t, 100), bundleType)
	refer(t, r, nil, lost)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv.answer(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.HasSuffix(req.URL.Path, lost.Digest.String()):
			w.WriteHeader(http.StatusForbidden)
		case strings.HasSuffix(req.URL.Path, ".sig"):
			cancel()
			<-req.Context().Done()
		default:
			return false
		}
		return true
	})
	found, err := collect.Until(ctx, newClient(t), r, nil, counts(t, trustOf(t, newHand(t, "bob").signer)))
	var blob *collect.BlobError
	if err == nil || errors.As(err, &blob) || found.Digest != "" {
		t.Errorf("found %+v, %v", found, err)
	}
}
