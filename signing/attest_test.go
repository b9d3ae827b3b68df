package signing_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sigstore/cosign/v2/pkg/cosign"

	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

// TestCosignAndSkepReadAttestationsThatSkepWrites attests an image twice, beside what cosign
// attested already.
func TestCosignAndSkepReadAttestationsThatSkepWrites(t *testing.T) {
	const provenance, bom = "https://slsa.dev/provenance/v1", "https://cyclonedx.org/bom"
	r := pushed(t, newRegistry(t, true))
	raw := newECKey(t)
	key, alice := parsedKey(t, "alice", raw)
	writeCosignAttestation(t, r, identity{key: signerOf(t, raw)}.envelope(t, statementOf(t, r.Digest, "https://example.com/first", nil, nil)))
	for _, kind := range []string{provenance, bom} {
		if err := sign.Attest(t.Context(), newClient(t), r, key, statementOf(t, r.Digest, kind, map[string]string{"of": kind}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	options := cosignOptions(t, raw)
	options.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
	if found, _, err := cosign.VerifyImageAttestations(t.Context(), digestOf(t, r), options); err != nil || len(found) != 3 {
		t.Errorf("cosign found %d attestations: %v", len(found), err)
	}
	options.SigVerifier = signerOf(t, newECKey(t))
	if _, _, err := cosign.VerifyImageAttestations(t.Context(), digestOf(t, r), options); err == nil {
		t.Error("cosign takes them for another key's too")
	}
	e := verify(t, trustOf(t, alice), collected(t, r))
	var kinds []string
	for _, a := range e.Attestations {
		kinds = append(kinds, a.PredicateType)
	}
	if !slices.Equal(kinds, []string{bom, "https://example.com/first", provenance}) || len(e.Rejected) > 0 {
		t.Errorf("skep found %v: %+v", kinds, e.Rejected)
	}
	err := sign.Attest(t.Context(), newClient(t), r, key, statementOf(t, otherImage, bom, nil, nil))
	if err == nil || !strings.Contains(err.Error(), "about something else") {
		t.Errorf("a statement about another image: %v", err)
	}
}

// TestASignatureClaimsWhereTheImageIsGoingToBe signs one that is not there yet.
func TestASignatureClaimsWhereTheImageIsGoingToBe(t *testing.T) {
	r := pushed(t, newRegistry(t, true))
	key, _ := parsedKey(t, "alice", newECKey(t))
	signed(t, r, key, sign.Options{Identity: "registry.example.com/team/counter"})
	for _, a := range collected(t, r).Artifacts {
		if a.Kind != collect.LegacySignature || !strings.Contains(string(a.Content), `"docker-reference":"registry.example.com/team/counter`) {
			t.Errorf("%s: %s", a.Kind, a.Content)
		}
	}
}
