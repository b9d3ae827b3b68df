package signing_test

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

// signElsewhere signs an image as cosign sign does under COSIGN_REPOSITORY: in a tag,
// or in a bundle. It returns the image in a registry that has no signature.
func signElsewhere(t *testing.T, raw *ecdsa.PrivateKey, elsewhere *counting, repository string, bundle bool) image.Resolved {
	t.Helper()
	srv, pushes := recorded(t)
	r := pushed(t, srv)
	pushes()
	if bundle {
		writeCosignBundle(t, r, raw, statementOf(t, r.Digest, cosignPredicate, map[string]any{}, nil), cosignPredicate)
	} else {
		writeCosignSignature(t, r, raw, nil)
	}
	g := golden{digest: r.Digest, manifests: pushes()}
	g.blobs = blobsOf(t, srv, g.manifests)
	g.pushTo(t, elsewhere, repository)
	return g.resolved(newRegistry(t, true))
}

func collectFor(t *testing.T, client *registry.Client, r image.Resolved, trust *signing.Trust) (collect.Collected, error) {
	t.Helper()
	return collect.All(t.Context(), client, r, trust.Repositories()...)
}

func TestSignaturesInAnotherRepository(t *testing.T) {
	for _, bundle := range []bool{false, true} {
		elsewhere := newRegistry(t, true)
		raw := newECKey(t)
		_, alice := parsedKey(t, "alice", raw)
		trust := trustOf(t, alice)
		r := signElsewhere(t, raw, elsewhere, "team/signatures", bundle)
		repository := elsewhere.host + "/team/signatures"
		c, err := collectFor(t, newClient(t), r, trust)
		if e := verify(t, trust, c); err != nil || len(e.Signatures) != 0 || len(c.Repositories) != 0 {
			t.Errorf("a repository that no signer names: %v, %+v", err, e)
		}
		alice.Spec.Repository = repository
		trust = trustOf(t, alice)
		elsewhere.asked()
		c, err = collectFor(t, newClient(t), r, trust)
		if err != nil || !slices.Equal(c.Repositories, []string{repository}) || c.Partial {
			t.Fatalf("got %v, %+v", err, c)
		}
		if n := len(elsewhere.asked()); n > 6 {
			t.Errorf("it takes %d requests", n)
		}
		if e := verify(t, trust, c); !slices.Equal(e.Signers(), []string{"alice"}) || len(e.Rejected) != 0 {
			t.Errorf("bundle %v: %+v", bundle, e)
		}
		if !strings.Contains(c.Artifacts[0].Origin, " in "+repository) {
			t.Errorf("its origin is %s", c.Artifacts[0].Origin)
		}
	}
}

// TestARepositoryOfASignerIsAway: what is beside the image is collected all the same, as
// a part.
func TestARepositoryOfASignerIsAway(t *testing.T) {
	r, elsewhere := pushed(t, newRegistry(t, true)), newRegistry(t, true)
	key, alice := newKey(t, "alice")
	_, bob := newKey(t, "bob")
	bob.Spec.Repository = elsewhere.host + "/signatures"
	trust := trustOf(t, alice, bob)
	signed(t, r, key, sign.Options{})
	elsewhere.answer(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	c, err := collectFor(t, newClient(t), r, trust)
	var away *collect.RepositoryError
	if !errors.As(err, &away) || away.Repository != bob.Spec.Repository || !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("got error %v", err)
	}
	if e := verify(t, trust, c); !slices.Equal(e.Signers(), []string{"alice"}) || !c.Partial ||
		!slices.Equal(c.Lacks(trust.Repositories()), trust.Repositories()) {
		t.Errorf("got %+v", c)
	}
	enough := func(collect.Collected) (bool, error) { return false, nil }
	if c, err := collect.Until(t.Context(), newClient(t), r, nil, enough, trust.Repositories()...); !errors.As(err, &away) || len(c.Artifacts) != 1 || !c.Partial {
		t.Errorf("got %v, %+v", err, c)
	}
	elsewhere.answer(nil)
	if c, err = collect.Complete(t.Context(), newClient(t), r, c, nil, trust.Repositories()...); err != nil || c.Partial || len(c.Artifacts) != 1 {
		t.Errorf("got %v, %+v", err, c)
	}
}

// TestARepositoryOfASignerIsOneThatIsAllowed: a signer names none that nobody else may.
func TestARepositoryOfASignerIsOneThatIsAllowed(t *testing.T) {
	r, elsewhere := pushed(t, newRegistry(t, true)), newRegistry(t, true)
	_, alice := newKey(t, "alice")
	alice.Spec.Repository = elsewhere.host + "/signatures"
	client, err := registry.NewClient(registry.Options{Attempts: 1, AllowedRegistries: []string{r.Registry}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := collectFor(t, client, r, trustOf(t, alice))
	if err != nil || len(elsewhere.asked()) != 0 || len(c.Skipped) != 1 || !strings.Contains(c.Skipped[0], "not among the registries that are allowed") {
		t.Errorf("got %v, %+v", err, c)
	}
}

// TestFewRepositoriesOfSignersAreRead bounds what each image costs.
func TestFewRepositoriesOfSignersAreRead(t *testing.T) {
	r, elsewhere := pushed(t, newRegistry(t, true)), newRegistry(t, true)
	var repositories []string
	for _, letter := range "abcdefgh" {
		repositories = append(repositories, elsewhere.host+"/signatures/"+string(letter))
	}
	c, err := collect.All(t.Context(), newClient(t), r, repositories...)
	if err != nil || !slices.Equal(c.Repositories, repositories[:4]) || c.Partial || len(c.Skipped) != 1 ||
		!strings.Contains(c.Skipped[0], "4 of 8 repositories") {
		t.Errorf("got %v, %+v", err, c)
	}
}

const envelopeType = "application/vnd.dsse.envelope.v1+json"

// vendors are two signers with repositories of their own, in which vendor-b signed an
// image; beside is what else is about the image in that of vendor-a.
func vendors(t *testing.T) (r image.Resolved, elsewhere *counting, trust *signing.Trust, beside image.Resolved) {
	t.Helper()
	elsewhere = newRegistry(t, true)
	a, b := newHand(t, "vendor-a"), newHand(t, "vendor-b")
	r = signElsewhere(t, b.raw, elsewhere, "vendor-b", false)
	a.signer.Spec.Repository, b.signer.Spec.Repository = elsewhere.host+"/vendor-a", elsewhere.host+"/vendor-b"
	beside = image.Resolved{Registry: elsewhere.host, Repository: "vendor-a", Digest: r.Digest, Reference: elsewhere.host + "/vendor-a@" + r.Digest}
	return r, elsewhere, trustOf(t, a.signer, b.signer), beside
}

// missingBlob describes a blob that is nowhere.
func missingBlob(n int, size int64) v1.Descriptor {
	return v1.Descriptor{MediaType: envelopeType, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%064d", n)}}
}

// TestOneRepositoryHidesNothingOfAnother: whoever may push to the repository of one
// signer takes no bytes from another's.
func TestOneRepositoryHidesNothingOfAnother(t *testing.T) {
	for sentence, c := range map[string]struct {
		push func(*testing.T, image.Resolved)
		// short is true where not all there is in it could be read.
		short bool
	}{
		"blobs that do not exist": {func(t *testing.T, beside image.Resolved) {
			tagAs(t, beside, ".att", missingBlob(1, 4<<20), missingBlob(2, 4<<20), missingBlob(3, 4<<20))
		}, false},
		"as much as is read": {func(t *testing.T, beside image.Resolved) {
			tagAs(t, beside, ".att", blobOf(t, beside, noise(t, 4<<20), envelopeType), blobOf(t, beside, noise(t, 3<<20), envelopeType))
		}, false},
		"more than is read": {func(t *testing.T, beside image.Resolved) {
			var all []v1.Descriptor
			for range 3 {
				all = append(all, blobOf(t, beside, noise(t, 4<<20), envelopeType))
			}
			tagAs(t, beside, ".att", all...)
		}, true},
		"more than is kept": {func(t *testing.T, beside image.Resolved) {
			all := slices.Repeat([]v1.Descriptor{blobOf(t, beside, noise(t, 4<<20), envelopeType)}, 3)
			for i := range all {
				all[i].Annotations = map[string]string{"dev.sigstore.cosign/certificate": fmt.Sprint(i)}
			}
			tagAs(t, beside, ".att", all...)
		}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			r, elsewhere, trust, beside := vendors(t)
			c.push(t, beside)
			got, err := collectFor(t, newClient(t), r, trust)
			want := []string{elsewhere.host + "/vendor-a", elsewhere.host + "/vendor-b"}
			var short *collect.RepositoryError
			if c.short != errors.As(err, &short) || c.short && (short.Repository != want[0] || !errors.Is(err, image.ErrTooLong)) || !c.short && err != nil {
				t.Errorf("got error %v", err)
			}
			if c.short {
				want = want[1:]
			}
			if !slices.Equal(got.Repositories, want) || got.Partial != c.short || got.Unread != c.short {
				t.Errorf("read %v, partial %v, want %v", got.Repositories, got.Partial, want)
			}
			if e := verify(t, trust, got); !slices.Equal(e.Signers(), []string{"vendor-b"}) || e.Partial != c.short {
				t.Errorf("signed by %v, partial %v; skipped %v", e.Signers(), e.Partial, got.Skipped)
			}
		})
	}
}

// TestWhatIsClaimedTakesNoBytes: layers that claim sizes and are not there keep no one
// out that is.
func TestWhatIsClaimedTakesNoBytes(t *testing.T) {
	r, _, trust, beside := vendors(t)
	content := noise(t, 3<<20)
	tagAs(t, beside, ".att", missingBlob(1, 2<<20), missingBlob(2, 2<<20), missingBlob(3, 2<<20), blobOf(t, beside, content, envelopeType))
	got, err := collectFor(t, newClient(t), r, trust)
	if err != nil || got.Partial {
		t.Errorf("partial %v, %v", got.Partial, err)
	}
	if !slices.ContainsFunc(got.Artifacts, func(a collect.Artifact) bool { return len(a.Content) == len(content) }) {
		t.Errorf("got %d artifacts; skipped %v", len(got.Artifacts), got.Skipped)
	}
}

// TestOneRepositoryThatHangsHidesNothingOfAnother: all are asked at once.
func TestOneRepositoryThatHangsHidesNothingOfAnother(t *testing.T) {
	r, elsewhere, trust, _ := vendors(t)
	asked := make(chan struct{})
	var once sync.Once
	elsewhere.answer(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.Contains(req.URL.Path, "/vendor-b/"):
			once.Do(func() { close(asked) })
		case strings.Contains(req.URL.Path, "/vendor-a/"):
			// It hangs for as long as the other is not asked.
			select {
			case <-asked:
			case <-req.Context().Done():
			}
		}
		return false
	})
	got, err := collectFor(t, newClient(t), r, trust)
	if e := verify(t, trust, got); err != nil || !slices.Equal(e.Signers(), []string{"vendor-b"}) || got.Partial {
		t.Errorf("signed by %v, partial %v: %v", e.Signers(), got.Partial, err)
	}
}
