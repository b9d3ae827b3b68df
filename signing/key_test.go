package signing_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
)

func generated(t *testing.T, generate func() (any, error)) any {
	t.Helper()
	key, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func keyKinds(t *testing.T) map[string]any {
	ec := func(c elliptic.Curve) func() (any, error) {
		return func() (any, error) { return ecdsa.GenerateKey(c, rand.Reader) }
	}
	return map[string]any{
		"ECDSA P-256": generated(t, ec(elliptic.P256())),
		"ECDSA P-384": generated(t, ec(elliptic.P384())),
		"ECDSA P-521": generated(t, ec(elliptic.P521())),
		"RSA 2048":    generated(t, func() (any, error) { return rsa.GenerateKey(rand.Reader, 2048) }),
		"Ed25519": generated(t, func() (any, error) {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			return key, err
		}),
	}
}

func TestEveryKindOfKeySigns(t *testing.T) {
	srv := newRegistry(t, true)
	for kind, raw := range keyKinds(t) {
		for form, options := range map[string]sign.Options{"legacy": {}, "bundled": {Bundle: true}} {
			t.Run(kind+" "+form, func(t *testing.T) {
				r := pushed(t, srv)
				key, alice := parsedKey(t, "alice", raw)
				_, bob := newKey(t, "bob")
				signed(t, r, key, options)
				c := collected(t, r)
				if e := verify(t, trustOf(t, alice, bob), c); !slices.Equal(e.Signers(), []string{"alice"}) || len(e.Rejected) != 0 {
					t.Errorf("got %+v", e)
				}
				if e := verify(t, trustOf(t, bob), c); len(e.Signatures) != 0 || len(e.Rejected) != 1 {
					t.Errorf("by bob, got %+v", e)
				}
			})
		}
	}
}

// TestEveryWayToUseAKey holds that signatures of older versions of cosign count,
// which hashed with SHA-256 whatever the curve, and did not prehash for Ed25519.
func TestEveryWayToUseAKey(t *testing.T) {
	kinds := keyKinds(t)
	content := simplePayload(t, thisImage, nil)
	for sentence, c := range map[string]struct {
		kind    string
		options []signature.LoadOption
	}{
		"P-384 with SHA-256": {"ECDSA P-384", []signature.LoadOption{options.WithHash(crypto.SHA256)}},
		"P-384 with SHA-384": {"ECDSA P-384", []signature.LoadOption{options.WithHash(crypto.SHA384)}},
		"P-521 with SHA-256": {"ECDSA P-521", []signature.LoadOption{options.WithHash(crypto.SHA256)}},
		"P-521 with SHA-512": {"ECDSA P-521", []signature.LoadOption{options.WithHash(crypto.SHA512)}},
		"plain Ed25519":      {"Ed25519", nil},
		"prehashed Ed25519":  {"Ed25519", []signature.LoadOption{options.WithED25519ph()}},
	} {
		t.Run(sentence, func(t *testing.T) {
			sv, err := signature.LoadSignerVerifierWithOpts(kinds[c.kind], c.options...)
			if err != nil {
				t.Fatal(err)
			}
			sig, err := sv.SignMessage(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			_, alice := parsedKey(t, "alice", kinds[c.kind])
			e := verify(t, trustOf(t, alice), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{{
				Kind: collect.LegacySignature, Origin: "tag", Content: content,
				Annotations: map[string]string{static.SignatureAnnotationKey: base64.StdEncoding.EncodeToString(sig)},
			}}})
			if !slices.Equal(e.Signers(), []string{"alice"}) {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestGeneratedKeysAreCosigns(t *testing.T) {
	private, public, err := sign.GenerateKey([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	sv, err := cosign.LoadPrivateKey(private, []byte("secret"), nil)
	if err != nil {
		t.Fatalf("cosign cannot read our key: %v", err)
	}
	if block, _ := pem.Decode(private); block.Type != cosign.SigstorePrivateKeyPemType {
		t.Errorf("PEM type is %q", block.Type)
	}
	theirs, err := sv.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := cosign.PemToECDSAKey(public)
	if err != nil || !ours.Equal(theirs) {
		t.Errorf("the public half is another: %v", err)
	}
	key, err := sign.ParsePrivateKey(private, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := key.Public(); err != nil || !bytes.Equal(again, public) {
		t.Errorf("public half of the parsed key is %s, want %s: %v", again, public, err)
	}
	if _, err := sign.ParsePrivateKey(private, []byte("wrong")); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with the wrong password, got error %v", err)
	}
}

func TestPrivateKeysThatCannotBeUsed(t *testing.T) {
	secret := "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
	weak := generated(t, func() (any, error) { return rsa.GenerateKey(rand.Reader, 1024) }).(*rsa.PrivateKey)
	for sentence, c := range map[string]struct{ data, want string }{
		"nothing":             {"", "it is not PEM"},
		"text":                {"hello " + secret, "it is not PEM"},
		"a public key":        {"-----BEGIN PUBLIC KEY-----\n" + secret + "\n-----END PUBLIC KEY-----\n", "not a private key"},
		"a broken EC key":     {"-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----\n", "holds no such key"},
		"a broken PKCS 8 key": {"-----BEGIN PRIVATE KEY-----\n" + secret + "\n-----END PRIVATE KEY-----\n", "holds no such key"},
		"a broken RSA key":    {"-----BEGIN RSA PRIVATE KEY-----\n" + secret + "\n-----END RSA PRIVATE KEY-----\n", "holds no such key"},
		"a broken cosign key": {
			"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n" + secret + "\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "cannot be decrypted",
		},
		"an RSA key that can be factored": {string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(weak)})), "too weak"},
	} {
		t.Run(sentence, func(t *testing.T) {
			_, err := sign.ParsePrivateKey([]byte(c.data), []byte("hunter2"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got error %v, want %q", err, c.want)
			}
			for _, leak := range []string{secret, "secret-secret", "hunter2"} {
				if strings.Contains(err.Error(), leak) {
					t.Errorf("the error shows %q: %v", leak, err)
				}
			}
		})
	}
}

func TestPlainKeysInEveryEncoding(t *testing.T) {
	ec := newECKey(t)
	sec1, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	pkcs1 := generated(t, func() (any, error) { return rsa.GenerateKey(rand.Reader, 2048) }).(*rsa.PrivateKey)
	for _, block := range []*pem.Block{
		{Type: "EC PRIVATE KEY", Bytes: sec1},
		{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(pkcs1)},
	} {
		if _, err := sign.ParsePrivateKey(pem.EncodeToMemory(block), nil); err != nil {
			t.Errorf("%s: %v", block.Type, err)
		}
	}
}

func TestSigningTwiceChangesNothing(t *testing.T) {
	for where, r := range places(t) {
		t.Run(where, func(t *testing.T) {
			key, _ := newKey(t, "alice")
			other, _ := newKey(t, "bob")
			for _, want := range []struct {
				key         *sign.PrivateKey
				annotations map[string]string
				count       int
			}{
				{key, nil, 1}, {key, nil, 1}, {other, nil, 2}, {key, map[string]string{"env": "prod"}, 3},
				{key, map[string]string{"env": "prod"}, 3}, {other, nil, 3},
			} {
				signed(t, r, want.key, sign.Options{Annotations: want.annotations})
				if got := len(collected(t, r).Artifacts); got != want.count {
					t.Fatalf("%d signatures, want %d", got, want.count)
				}
			}
		})
	}
}

func TestNoMoreSignaturesThanAreRead(t *testing.T) {
	srv := newRegistry(t, true)
	r := pushed(t, srv)
	var err error
	key, _ := newKey(t, "alice")
	for i := 0; err == nil && i < 100; i++ {
		err = sign.Image(t.Context(), newClient(t), r, key, sign.Options{Annotations: map[string]string{"n": strings.Repeat("n", i)}})
	}
	if err == nil || !strings.Contains(err.Error(), "64 signatures already") {
		t.Errorf("got error %v", err)
	}
	if c := collected(t, r); len(c.Artifacts) != 64 || len(c.Skipped) != 0 {
		t.Errorf("got %d artifacts, skipped %v", len(c.Artifacts), c.Skipped)
	}
}

func TestSignRefuses(t *testing.T) {
	srv := newRegistry(t, true)
	key, _ := newKey(t, "alice")
	r := pushed(t, srv)
	unresolved := r
	unresolved.Digest = ""
	if err := sign.Image(t.Context(), newClient(t), unresolved, key, sign.Options{}); err == nil || !strings.Contains(err.Error(), "resolve the reference first") {
		t.Errorf("unresolved: got error %v", err)
	}
	repo := digestOf(t, r).Repository
	index, err := random.Index(64, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(repo.Tag(signatureTag(t, r)), index); err != nil {
		t.Fatal(err)
	}
	if err := sign.Image(t.Context(), newClient(t), r, key, sign.Options{}); err == nil || !strings.Contains(err.Error(), "something other than signatures") {
		t.Errorf("an index under the tag: got error %v", err)
	}
	r = pushedAs(t, srv, "bpf/another:v1")
	srv.answer(refuseWrites)
	for _, options := range []sign.Options{{}, {Bundle: true}} {
		if err := sign.Image(t.Context(), newClient(t), r, key, options); err == nil || !strings.Contains(err.Error(), r.Reference) {
			t.Errorf("a registry that refuses: got error %v", err)
		}
	}
}

// payloads is what the key of alice signs in TestKeySignatures.
func payloads(t *testing.T) map[string][]byte {
	plain := simplePayload(t, thisImage, nil)
	return map[string][]byte{
		"this image":                plain,
		"another image":             simplePayload(t, otherImage, nil),
		"this image, for prod":      simplePayload(t, thisImage, map[string]any{"env": "prod"}),
		"something else":            []byte(strings.Replace(string(plain), "cosign container image signature", "a letter", 1)),
		"text":                      []byte("sha256:1111"),
		"null":                      []byte("null"),
		"this image, with a prefix": []byte(strings.Replace(string(plain), "sha256:1", "sha256:1 sha256:1", 1)),
	}
}

// legacyKey is a key's signature as cosign stores it under its tag.
func legacyKey(t *testing.T, raw *ecdsa.PrivateKey, content []byte) collect.Artifact {
	t.Helper()
	return collect.Artifact{
		Kind: collect.LegacySignature, Origin: "tag", Content: content,
		Annotations: map[string]string{static.SignatureAnnotationKey: base64Signature(t, raw, content)},
	}
}

func TestKeySignatures(t *testing.T) {
	raw := newECKey(t)
	_, alice := parsedKey(t, "alice", raw)
	_, bob := newKey(t, "bob")
	prod := alice
	prod.Name, prod.Spec.Annotations = "prod", map[string]string{"env": "prod"}
	revoked := alice
	revoked.Spec.Revoked = true
	twin := alice
	twin.Name = "twin"
	revokedProd := prod
	revokedProd.Spec.Revoked = true
	all := payloads(t)
	for sentence, c := range map[string]struct {
		signers []v1alpha1.BpfSigner
		payload string
		alter   func(*collect.Artifact)
		counts  []string
		because string
		revoked []string
	}{
		"a good signature":                           {signers: keys(alice, bob), payload: "this image", counts: []string{"alice"}},
		"two signers with one key":                   {signers: keys(alice, twin), payload: "this image", counts: []string{"alice", "twin"}},
		"no signers at all":                          {payload: "this image", because: "no signer is known"},
		"only other signers":                         {signers: keys(bob), payload: "this image", because: "no key of bob"},
		"another image":                              {signers: keys(alice), payload: "another image", because: "about another image"},
		"the digest is only a part of what it names": {signers: keys(alice), payload: "this image, with a prefix", because: "about another image"},
		"a payload of another type":                  {signers: keys(alice), payload: "something else", because: `of type "a letter"`},
		"a payload that is text":                     {signers: keys(alice), payload: "text", because: "not JSON"},
		"a payload that is null":                     {signers: keys(alice), payload: "null", because: "of type"},
		"the annotation that is asked for":           {signers: keys(prod), payload: "this image, for prod", counts: []string{"prod"}},
		"an annotation is asked for and not there":   {signers: keys(prod), payload: "this image", because: "lacks the annotation env=prod"},
		"a revoked signer":                           {signers: keys(revoked, bob), payload: "this image", because: "revoked", revoked: []string{"alice"}},
		"a revoked signer whose key another has":     {signers: keys(revoked, twin), payload: "this image", because: "revoked", revoked: []string{"alice"}},
		"a revoked signer whose annotation is not there": {
			signers: keys(revokedProd, alice), payload: "this image", counts: []string{"alice"},
		},
		"the payload was altered": {signers: keys(alice), payload: "this image", because: "no key of alice", alter: func(a *collect.Artifact) {
			a.Content = append(slices.Clone(a.Content), ' ')
		}},
		"the signature was altered": {signers: keys(alice), payload: "this image", because: "no key of alice", alter: func(a *collect.Artifact) {
			a.Annotations[static.SignatureAnnotationKey] = base64Signature(t, raw, []byte("another"))
		}},
		"the signature is not base64": {signers: keys(alice), payload: "this image", because: "no key of alice", alter: func(a *collect.Artifact) {
			a.Annotations[static.SignatureAnnotationKey] = "%%%"
		}},
		"there is no signature": {signers: keys(alice), payload: "this image", because: "it has no signature", alter: func(a *collect.Artifact) {
			a.Annotations = nil
		}},
		"its kind is unknown": {signers: keys(alice), payload: "this image", because: `kind "poem" is unknown`, alter: func(a *collect.Artifact) {
			a.Kind = "poem"
		}},
		"a log entry that nobody can check is beside it": {signers: keys(alice), payload: "this image", counts: []string{"alice"}, alter: func(a *collect.Artifact) {
			a.Annotations[static.BundleAnnotationKey] = `{"SignedEntryTimestamp":"AAAA","Payload":{"body":"e30=","integratedTime":1,"logIndex":1,"logID":"00"}}`
		}},
		"an expired certificate is beside it": {signers: keys(alice), payload: "this image", counts: []string{"alice"}, alter: func(a *collect.Artifact) {
			a.Annotations[static.CertificateAnnotationKey] = string(pemOf(t, newAuthority(t).stamper))
		}},
	} {
		t.Run(sentence, func(t *testing.T) {
			artifact := legacyKey(t, raw, all[c.payload])
			if c.alter != nil {
				c.alter(&artifact)
			}
			e := verify(t, trustOf(t, c.signers...), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact}})
			if got := e.Signers(); !slices.Equal(got, c.counts) {
				t.Errorf("counts for %v, want %v: %+v", got, c.counts, e)
			}
			if len(c.counts) == 0 {
				mustReject(t, e, c.because)
			}
			if got := e.Revoked; !slices.Equal(got, c.revoked) {
				t.Errorf("revoked signers %v, want %v", got, c.revoked)
			}
		})
	}
}

func keys(signers ...v1alpha1.BpfSigner) []v1alpha1.BpfSigner { return signers }

func TestGoodAndBadSignaturesTogether(t *testing.T) {
	alice, bob, mallory := newECKey(t), newECKey(t), newECKey(t)
	_, a := parsedKey(t, "alice", alice)
	_, b := parsedKey(t, "bob", bob)
	b.Spec.Revoked = true
	all := payloads(t)
	e := verify(t, trustOf(t, a, b), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{
		legacyKey(t, mallory, all["this image"]),
		legacyKey(t, alice, all["another image"]),
		legacyKey(t, bob, all["this image"]),
		legacyKey(t, alice, all["this image"]),
		legacyKey(t, alice, all["this image, for prod"]),
	}})
	if len(e.Signatures) != 2 || !slices.Equal(e.Signers(), []string{"alice"}) {
		t.Errorf("counts %+v, want two of alice", e.Signatures)
	}
	if len(e.Rejected) != 3 || !slices.Equal(e.Revoked, []string{"bob"}) {
		t.Errorf("rejected %+v, want three, one of them bob's", e.Rejected)
	}
}

// BenchmarkVerify is the worst that can be collected under one tag: as many
// signatures as are read, none of which is anybody's, and fifteen keys.
func BenchmarkVerify(b *testing.B) {
	var signers []v1alpha1.BpfSigner
	for i := range 15 {
		raw, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		public, err := cryptoutils.MarshalPublicKeyToPEM(raw.Public())
		if err != nil {
			b.Fatal(err)
		}
		signers = append(signers, keySigner(fmt.Sprintf("signer-%d", i), public))
	}
	trust, err := signing.NewTrust(signers)
	if err != nil {
		b.Fatal(err)
	}
	content := `{"critical":{"identity":{},"image":{"docker-manifest-digest":"` + thisImage + `"},"type":"cosign container image signature"}}`
	c := collect.Collected{Digest: thisImage}
	for range 64 {
		// A well-formed signature of something else.
		c.Artifacts = append(c.Artifacts, collect.Artifact{Kind: collect.LegacySignature, Content: []byte(content), Annotations: map[string]string{
			static.SignatureAnnotationKey: "MEUCIQDG/nrjhpx6yrzvBqt0V0VFwEGHD5u0dcT0B5WhdO9NZQIgItPevZ01jNmkkew6fAoFJHERAX7sy2jwJMHT46tNMbw=",
		}})
	}
	for b.Loop() {
		if e, err := trust.Verify(b.Context(), c, time.Now()); err != nil || len(e.Signatures) != 0 {
			b.Fatalf("got %+v: %v", e, err)
		}
	}
}

func TestAttestationsOfAKey(t *testing.T) {
	raw := newECKey(t)
	_, alice := parsedKey(t, "alice", raw)
	r := pushed(t, newRegistry(t, true))
	predicate := json.RawMessage(`{"builder":{"id":"ci"}}`)
	about := statementOf(t, r.Digest, provenance, predicate, nil)
	writeCosignAttestation(t, r, identity{key: signerOf(t, raw)}.envelope(t, about))
	writeCosignBundle(t, r, raw, about, provenance)
	other := statementOf(t, otherImage, provenance, predicate, nil)
	writeCosignBundle(t, r, raw, other, provenance)
	e := verify(t, trustOf(t, alice), collected(t, r))
	if len(e.Signatures) != 0 || len(e.Attestations) != 1 {
		t.Fatalf("got %+v, want one attestation, which was found twice", e)
	}
	got := e.Attestations[0]
	if got.Signer != "alice" || got.PredicateType != provenance || string(got.Predicate) != string(predicate) {
		t.Errorf("got %+v", got)
	}
	if len(e.Rejected) != 1 || !strings.Contains(e.Rejected[0].Reason, "about another image") {
		t.Errorf("rejected %+v", e.Rejected)
	}
}
