package signing_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"encoding/base64"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	rekor "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/mutate"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

func digestOf(t *testing.T, r image.Resolved) name.Digest {
	t.Helper()
	d, err := r.ByDigest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func signerOf(t *testing.T, raw *ecdsa.PrivateKey) signature.SignerVerifier {
	t.Helper()
	sv, err := signature.LoadECDSASignerVerifier(raw, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return sv
}

func base64Signature(t *testing.T, raw *ecdsa.PrivateKey, content []byte) string {
	t.Helper()
	sig, err := signerOf(t, raw).SignMessage(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// refuseWrites answers like a registry that lets nobody push.
func refuseWrites(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return false
	}
	w.WriteHeader(http.StatusForbidden)
	return true
}

// writeCosignSignature signs and stores with cosign's own code, the way cosign
// sign --key --tlog-upload=false does.
func writeCosignSignature(t *testing.T, r image.Resolved, raw *ecdsa.PrivateKey, annotations map[string]any) {
	t.Helper()
	d := digestOf(t, r)
	content, err := payload.Cosign{Image: d, Annotations: annotations}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := static.NewSignature(content, base64Signature(t, raw, content))
	if err != nil {
		t.Fatal(err)
	}
	entity, err := ociremote.SignedEntity(d)
	if err != nil {
		t.Fatal(err)
	}
	if entity, err = mutate.AttachSignatureToEntity(entity, sig); err != nil {
		t.Fatal(err)
	}
	if err := ociremote.WriteSignatures(d.Repository, entity); err != nil {
		t.Fatal(err)
	}
}

// writeCosignAttestation stores an envelope the way cosign attest does.
func writeCosignAttestation(t *testing.T, r image.Resolved, envelope []byte) {
	t.Helper()
	att, err := static.NewAttestation(envelope, static.WithLayerMediaType(ctypes.DssePayloadType))
	if err != nil {
		t.Fatal(err)
	}
	d := digestOf(t, r)
	entity, err := ociremote.SignedEntity(d)
	if err != nil {
		t.Fatal(err)
	}
	if entity, err = mutate.AttachAttestationToEntity(entity, att); err != nil {
		t.Fatal(err)
	}
	if err := ociremote.WriteAttestations(d.Repository, entity); err != nil {
		t.Fatal(err)
	}
}

// writeCosignBundle signs, packs and stores a statement with cosign's own code,
// the way cosign sign and attest with --new-bundle-format do.
func writeCosignBundle(t *testing.T, r image.Resolved, raw *ecdsa.PrivateKey, content []byte, predicateType string) {
	t.Helper()
	public, err := cryptoutils.MarshalPublicKeyToPEM(raw.Public())
	if err != nil {
		t.Fatal(err)
	}
	envelope := identity{key: signerOf(t, raw)}.envelope(t, content)
	b, err := rekor.MakeNewBundle(raw.Public(), nil, content, envelope, public, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ociremote.WriteAttestationNewBundleFormat(digestOf(t, r), b, predicateType); err != nil {
		t.Fatal(err)
	}
}

// cosignOptions are those of cosign verify --key --insecure-ignore-tlog.
func cosignOptions(t *testing.T, raw *ecdsa.PrivateKey) *cosign.CheckOpts {
	t.Helper()
	return &cosign.CheckOpts{SigVerifier: signerOf(t, raw), IgnoreTlog: true, Offline: true, ClaimVerifier: cosign.SimpleClaimVerifier}
}

func TestCosignVerifiesWhatSkepSigned(t *testing.T) {
	r := pushed(t, newRegistry(t, true))
	raw := newECKey(t)
	key, _ := parsedKey(t, "alice", raw)
	annotations := map[string]string{"env": "prod"}
	signed(t, r, key, sign.Options{Annotations: annotations})
	options := cosignOptions(t, raw)
	options.Annotations = map[string]any{"env": "prod"}
	sigs, _, err := cosign.VerifyImageSignatures(t.Context(), digestOf(t, r), options)
	if err != nil || len(sigs) != 1 {
		t.Errorf("cosign found %d signatures: %v", len(sigs), err)
	}
	options.SigVerifier = signerOf(t, newECKey(t))
	if _, _, err := cosign.VerifyImageSignatures(t.Context(), digestOf(t, r), options); err == nil {
		t.Error("cosign takes it for another key's too")
	}
}

func TestCosignReadsTheBundlesThatSkepWrites(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		r := pushed(t, newRegistry(t, referrers))
		raw := newECKey(t)
		key, _ := parsedKey(t, "alice", raw)
		signed(t, r, key, sign.Options{Bundle: true})
		trusted := newAuthority(t).signer(t, "unused").Spec.Keyless.TrustedRoot
		options := cosignOptions(t, raw)
		options.NewBundleFormat, options.TrustedMaterial = true, trustedMaterial(t, trusted)
		options.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
		atts, _, err := cosign.VerifyImageAttestations(t.Context(), digestOf(t, r), options)
		if err != nil || len(atts) != 1 {
			t.Errorf("referrers API %v: cosign found %d bundles: %v", referrers, len(atts), err)
		}
	}
}

func TestSkepVerifiesWhatCosignSigned(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		r := pushed(t, newRegistry(t, referrers))
		raw := newECKey(t)
		_, alice := parsedKey(t, "alice", raw)
		writeCosignSignature(t, r, raw, map[string]any{"by": "tag"})
		content := statementOf(t, r.Digest, cosignPredicate, nil, map[string]any{"by": "bundle"})
		writeCosignBundle(t, r, raw, content, cosignPredicate)
		e := verify(t, trustOf(t, alice), collected(t, r))
		var by []string
		for _, s := range e.Signatures {
			by = append(by, s.Annotations["by"])
		}
		slices.Sort(by)
		if !slices.Equal(by, []string{"bundle", "tag"}) || len(e.Rejected) != 0 {
			t.Errorf("referrers API %v: got %+v", referrers, e)
		}
	}
}

// TestSkepAndCosignSignOneImage holds that neither loses what the other wrote.
func TestSkepAndCosignSignOneImage(t *testing.T) {
	r := pushed(t, newRegistry(t, true))
	aliceRaw, bobRaw, carolRaw := newECKey(t), newECKey(t), newECKey(t)
	_, alice := parsedKey(t, "alice", aliceRaw)
	bobKey, bob := parsedKey(t, "bob", bobRaw)
	_, carol := parsedKey(t, "carol", carolRaw)
	writeCosignSignature(t, r, aliceRaw, nil)
	signed(t, r, bobKey, sign.Options{})
	writeCosignSignature(t, r, carolRaw, nil)
	e := verify(t, trustOf(t, alice, bob, carol), collected(t, r))
	if got := e.Signers(); !slices.Equal(got, []string{"alice", "bob", "carol"}) || len(e.Rejected) != 0 {
		t.Errorf("got %+v", e)
	}
	for _, raw := range []*ecdsa.PrivateKey{aliceRaw, bobRaw, carolRaw} {
		if _, _, err := cosign.VerifyImageSignatures(t.Context(), digestOf(t, r), cosignOptions(t, raw)); err != nil {
			t.Error(err)
		}
	}
}

// TestMessageSignatureOfTheManifest is the form of a bundle that has no
// statement: the signature is of the image's manifest itself.
func TestMessageSignatureOfTheManifest(t *testing.T) {
	raw := newECKey(t)
	_, alice := parsedKey(t, "alice", raw)
	manifest := []byte(`{"schemaVersion":2}`)
	h, _, err := v1.SHA256(bytes.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	for sentence, c := range map[string]struct {
		digest string
		counts bool
	}{
		"of this image":    {h.String(), true},
		"of another image": {otherImage, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			artifact := collect.Artifact{Kind: collect.Bundle, Origin: "referrer", Content: messageBundle(t, raw, manifest, h)}
			e := verify(t, trustOf(t, alice), collect.Collected{Digest: c.digest, Artifacts: []collect.Artifact{artifact}})
			if got := len(e.Signatures) == 1; got != c.counts {
				t.Errorf("counts: %v, want %v: %+v", got, c.counts, e)
			}
			if !c.counts {
				mustReject(t, e, "about another image")
			}
		})
	}
}
