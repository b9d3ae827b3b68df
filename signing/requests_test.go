package signing_test

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

// hand is somebody who can write beside an image.
type hand struct {
	raw    *ecdsa.PrivateKey
	key    *sign.PrivateKey
	signer v1alpha1.BpfSigner
}

func newHand(t *testing.T, name string) hand {
	t.Helper()
	h := hand{raw: newECKey(t)}
	h.key, h.signer = parsedKey(t, name, h.raw)
	return h
}

// write is one thing that a hand leaves beside an image.
type write func(*testing.T, image.Resolved, hand)

func signs(options sign.Options) write {
	return func(t *testing.T, r image.Resolved, by hand) { signed(t, r, by.key, options) }
}

// attests writes a bundle as cosign attest does.
func attests(t *testing.T, r image.Resolved, by hand) {
	content := statementOf(t, r.Digest, provenance, map[string]any{"builder": "ci"}, nil)
	writeCosignBundle(t, r, by.raw, content, provenance)
}

// deed says who writes what.
type deed struct {
	by    string
	write write
}

// counts stops collecting at a signature that counts, as the gate does.
func counts(t *testing.T, trust *signing.Trust) func(collect.Collected) (bool, error) {
	return func(part collect.Collected) (bool, error) {
		if !part.Partial {
			t.Error("a part does not say that it is one")
		}
		e, err := trust.Verify(t.Context(), part, time.Now())
		return len(e.Signatures) > 0, err
	}
}

func TestRequestsForOneImage(t *testing.T) {
	legacy, bundle := signs(sign.Options{}), signs(sign.Options{Bundle: true})
	annotations := map[string]string{"env": "prod"}
	annotated, annotatedBundle := signs(sign.Options{Annotations: annotations}), signs(sign.Options{Bundle: true, Annotations: annotations})
	for sentence, c := range map[string]requestsCase{
		"no signature":                            {nil, 4, nil, false},
		"a legacy signature":                      {[]deed{{"alice", legacy}}, 4, []string{"alice"}, false},
		"a legacy signature with annotations":     {[]deed{{"alice", annotated}}, 5, []string{"alice"}, false},
		"a bundle":                                {[]deed{{"alice", bundle}}, 4, []string{"alice"}, true},
		"a bundle with annotations":               {[]deed{{"alice", annotatedBundle}}, 4, []string{"alice"}, true},
		"a bundle, and another's legacy one":      {[]deed{{"alice", bundle}, {"bob", legacy}}, 4, []string{"alice"}, true},
		"a bundle, and a stranger's attestation":  {[]deed{{"alice", bundle}, {"scanner", attests}}, 6, []string{"alice"}, true},
		"a stranger's attestation, and a legacy":  {[]deed{{"scanner", attests}, {"alice", legacy}}, 6, []string{"alice"}, false},
		"a stranger's bundle, and a legacy":       {[]deed{{"scanner", bundle}, {"alice", legacy}}, 6, []string{"alice"}, false},
		"a signer's attestation, and a legacy":    {[]deed{{"bob", attests}, {"alice", legacy}}, 6, []string{"alice"}, false},
		"a revoked signer's bundle, and a legacy": {[]deed{{"mallory", bundle}, {"alice", legacy}}, 6, []string{"alice"}, false},
		"all of them": {
			[]deed{{"scanner", attests}, {"mallory", bundle}, {"bob", attests}, {"alice", legacy}}, 10, []string{"alice"}, false,
		},
	} {
		for _, referrers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, referrers API %v", sentence, referrers), func(t *testing.T) {
				t.Parallel()
				c.run(t, referrers)
			})
		}
	}
}

// requestsCase is what stands beside an image, and what it takes to find it.
type requestsCase struct {
	deeds []deed
	// want is for a registry with the referrers API; one without takes one
	// request more.
	want int
	// signers are those that count, partial tells that they were enough.
	signers []string
	partial bool
}

// run collects for one signer, and for fifteen with a revoked one.
func (c requestsCase) run(t *testing.T, referrers bool) {
	srv := newRegistry(t, referrers)
	r := pushed(t, srv)
	hands := map[string]hand{}
	for _, name := range []string{"alice", "bob", "mallory", "scanner"} {
		hands[name] = newHand(t, name)
	}
	for _, d := range c.deeds {
		d.write(t, r, hands[d.by])
	}
	if !referrers {
		c.want++
	}
	mallory := hands["mallory"].signer
	mallory.Spec.Revoked = true
	one := []v1alpha1.BpfSigner{hands["alice"].signer}
	fifteen := append(slices.Clone(one), hands["bob"].signer, mallory)
	for i := range 12 {
		_, other := newKey(t, fmt.Sprintf("other-%d", i))
		fifteen = append(fifteen, other)
	}
	for _, signers := range [][]v1alpha1.BpfSigner{one, fifteen} {
		client, trust := newClient(t), trustOf(t, signers...)
		srv.asked()
		got, err := collect.Until(t.Context(), client, r, nil, counts(t, trust))
		if err != nil {
			t.Fatal(err)
		}
		if asked := srv.asked(); len(asked) != c.want {
			t.Errorf("%d signers took %d requests, want %d:\n%s", len(signers), len(asked), c.want, strings.Join(asked, "\n"))
		}
		e := verify(t, trust, got)
		if !slices.Equal(e.Signers(), c.signers) || got.Partial != c.partial || e.Partial != c.partial {
			t.Errorf("signed by %v, partial %v; want %v, %v", e.Signers(), got.Partial, c.signers, c.partial)
		}
		isWhole(t, srv, client, r, got)
	}
}

// isWhole holds that what was collected, once completed, is what Collect finds,
// and costs no request twice.
func isWhole(t *testing.T, srv *counting, client *registry.Client, r image.Resolved, got collect.Collected) {
	t.Helper()
	srv.asked()
	whole, err := collect.Complete(t.Context(), client, r, got, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	if got.Partial {
		want = 2
	}
	if asked := srv.asked(); len(asked) != want {
		t.Errorf("the rest took %d requests, want %d:\n%s", len(asked), want, strings.Join(asked, "\n"))
	}
	if all := collected(t, r); hashOf(t, whole) != hashOf(t, all) || whole.Partial {
		t.Errorf("completed %+v, want %+v", whole, all)
	}
}

func TestWhatStopsCollectingIsNotHidden(t *testing.T) {
	r := pushed(t, newRegistry(t, true))
	stumble := errors.New("stumbled")
	_, err := collect.Until(t.Context(), newClient(t), r, nil, func(collect.Collected) (bool, error) { return true, stumble })
	if !errors.Is(err, stumble) {
		t.Errorf("got error %v, want %v", err, stumble)
	}
	other := collect.Collected{Digest: otherImage, Partial: true}
	if _, err := collect.Complete(t.Context(), newClient(t), r, other, nil); err == nil {
		t.Error("what was collected of one image was completed with another's")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := collect.Complete(ctx, newClient(t), r, collect.Collected{Digest: r.Digest, Partial: true}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

// TestResolveSharesThePing holds that whoever resolved the image with the same
// client has pinged the registry already.
func TestResolveSharesThePing(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	key, _ := newKey(t, "alice")
	signed(t, r, key, sign.Options{})
	client := newClient(t)
	if _, err := client.Resolve(t.Context(), r.Reference); err != nil {
		t.Fatal(err)
	}
	srv.asked()
	if _, err := collect.All(t.Context(), client, r); err != nil {
		t.Fatal(err)
	}
	if asked := srv.asked(); len(asked) != 3 {
		t.Errorf("took %d requests, want 3: %v", len(asked), asked)
	}
}
