package signing_test

import (
	"crypto/ecdsa"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/signing"
)

// signElsewhere signs an image as cosign sign does under COSIGN_REPOSITORY: in a tag,
// or in a bundle. It returns the image in a registry that has no signature.
func signElsewhere(t *testing.T, raw *ecdsa.PrivateKey, elsewhere *counting, repository string, bundle bool) image.Resolved {
	t.Helper()
	registry, pushes := recorded(t)
	r := pushed(t, registry)
	pushes()
	if bundle {
		writeCosignBundle(t, r, raw, statementOf(t, r.Digest, cosignPredicate, map[string]any{}, nil), cosignPredicate)
	} else {
		writeCosignSignature(t, r, raw, nil)
	}
	g := golden{digest: r.Digest, manifests: pushes()}
	g.blobs = blobsOf(t, registry, g.manifests)
	g.pushTo(t, elsewhere, repository)
	return g.resolved(newRegistry(t, true))
}

func collectFor(t *testing.T, client *image.Client, r image.Resolved, trust *signing.Trust) (signing.Collected, error) {
	t.Helper()
	return signing.Collect(t.Context(), client, r, trust.Repositories()...)
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
	sign(t, r, key, signing.SignOptions{})
	elsewhere.answer(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	c, err := collectFor(t, newClient(t), r, trust)
	var away *signing.RepositoryError
	if !errors.As(err, &away) || away.Repository != bob.Spec.Repository || !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("got error %v", err)
	}
	if e := verify(t, trust, c); !slices.Equal(e.Signers(), []string{"alice"}) || !c.Partial || !slices.Equal(c.Lacks(trust.Repositories()), trust.Repositories()) {
		t.Errorf("got %+v", c)
	}
	enough := func(signing.Collected) (bool, error) { return false, nil }
	if c, err := signing.CollectUntil(t.Context(), newClient(t), r, enough, trust.Repositories()...); !errors.As(err, &away) || len(c.Artifacts) != 1 || !c.Partial {
		t.Errorf("got %v, %+v", err, c)
	}
	elsewhere.answer(nil)
	if c, err = signing.Complete(t.Context(), newClient(t), r, c, trust.Repositories()...); err != nil || c.Partial || len(c.Artifacts) != 1 {
		t.Errorf("got %v, %+v", err, c)
	}
}

// TestARepositoryOfASignerIsOneThatIsAllowed: a signer names none that nobody else may.
func TestARepositoryOfASignerIsOneThatIsAllowed(t *testing.T) {
	r, elsewhere := pushed(t, newRegistry(t, true)), newRegistry(t, true)
	_, alice := newKey(t, "alice")
	alice.Spec.Repository = elsewhere.host + "/signatures"
	client, err := image.NewClient(image.Options{Attempts: 1, AllowedRegistries: []string{r.Registry}})
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
	c, err := signing.Collect(t.Context(), newClient(t), r, repositories...)
	if err != nil || !slices.Equal(c.Repositories, repositories[:4]) || c.Partial || len(c.Skipped) != 1 || !strings.Contains(c.Skipped[0], "4 of 8 repositories") {
		t.Errorf("got %v, %+v", err, c)
	}
}
