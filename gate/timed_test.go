package gate_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// clock is a transparency log, as far as it gives signatures a trusted time.
type clock struct {
	key    *ecdsa.PrivateKey
	public []byte
	id     [sha256.Size]byte
}

func newClock(t *testing.T) *clock {
	t.Helper()
	key, _ := plainKey(t)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return &clock{key: key, public: der, id: sha256.Sum256(der)}
}

// root is the trusted root that names the log.
func (c *clock) root(t testing.TB) string {
	t.Helper()
	return string(marshal(t, map[string]any{
		"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		"tlogs": []any{map[string]any{
			"baseUrl": "https://log.invalid", "hashAlgorithm": "SHA2_256", "logId": map[string]any{"keyId": c.id[:]},
			"publicKey": map[string]any{
				"rawBytes": c.public, "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": map[string]any{"start": "2000-01-01T00:00:00Z"},
			},
		}},
	}))
}

// record is the log's entry of a signature, as cosign keeps it beside it.
func (c *clock) record(t testing.TB, content, sig, by []byte, at time.Time) string {
	t.Helper()
	sum := sha256.Sum256(content)
	body := marshal(t, map[string]any{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
		"data":      map[string]any{"hash": map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])}},
		"signature": map[string]any{"content": sig, "publicKey": map[string]any{"content": by}},
	}})
	// The fields are in the order of RFC 8785.
	entry := fmt.Sprintf(`{"body":%q,"integratedTime":%d,"logID":"%x","logIndex":0}`, base64.StdEncoding.EncodeToString(body), at.Unix(), c.id)
	signed := sha256.Sum256([]byte(entry))
	promise, err := ecdsa.SignASN1(rand.Reader, c.key, signed[:])
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"SignedEntryTimestamp":%q,"Payload":%s}`, base64.StdEncoding.EncodeToString(promise), entry)
}

// signedPayload is what cosign signs of a reference, and the signature.
func (w *world) signedPayload(ref string, key *ecdsa.PrivateKey) (content, sig []byte) {
	w.t.Helper()
	content = marshal(w.t, map[string]any{"critical": map[string]any{
		"identity": map[string]any{"docker-reference": ref}, "image": map[string]any{"docker-manifest-digest": w.resolve(ref).Digest},
		"type": "cosign container image signature",
	}, "optional": nil})
	sum := sha256.Sum256(content)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		w.t.Fatal(err)
	}
	return content, sig
}

// tagSignature writes a signature under cosign's tag.
func (w *world) tagSignature(ref string, content []byte, annotations map[string]string) {
	w.t.Helper()
	r := w.resolve(ref)
	layer := describe(content, "application/vnd.dev.cosign.simplesigning.v1+json")
	layer.Annotations = annotations
	to, err := w.client.Attachments(r)
	if err != nil {
		w.t.Fatal(err)
	}
	digest, err := v1.NewHash(r.Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	config := []byte("{}")
	manifest := marshal(w.t, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: describe(config, types.OCIConfigJSON), Layers: []v1.Descriptor{layer},
	})
	err = errors.Join(
		to.PutBlob(w.t.Context(), describe(config, types.OCIConfigJSON), config),
		to.PutBlob(w.t.Context(), describe(content, layer.MediaType), content),
		to.PutManifest(w.t.Context(), describe(manifest, types.OCIManifestSchema1), manifest, collect.SignatureTag(digest)),
	)
	if err != nil {
		w.t.Fatal(err)
	}
}

// signAt signs what a reference stands for under cosign's tag, and has a log record it.
func (w *world) signAt(c *clock, ref, signer string, at time.Time) {
	w.t.Helper()
	content, sig := w.signedPayload(ref, w.raw[signer])
	der, err := x509.MarshalPKIXPublicKey(w.raw[signer].Public())
	if err != nil {
		w.t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	w.tagSignature(ref, content, map[string]string{
		"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig),
		"dev.sigstore.cosign/bundle":         c.record(w.t, content, sig, public, at),
	})
	for i := range w.signers {
		if w.signers[i].Name == signer {
			w.signers[i].Spec.Key.TrustedRoot = c.root(w.t)
		}
	}
}

// revokeAfter is the world's signers, one of them revoked from a time on.
func (w *world) revokeAfter(name string, at time.Time) *signing.Trust {
	w.t.Helper()
	signers := slices.Clone(w.signers)
	for i := range signers {
		if signers[i].Name == name {
			signers[i].Spec.RevokedAfter = &metav1.Time{Time: at}
		}
	}
	return w.trust(signers...)
}

// TestARevocationFromATimeOnActsOnWhatWasSealed has what runs evaluated anew after a
// signer is revoked from a time on, with the registry there, edited, and away.
func TestARevocationFromATimeOnActsOnWhatWasSealed(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	edits := map[string]func(w *world, ref string){
		"as it is": func(*world, string) {},
		// An honest registry has the signature still; without it, the record alone says when.
		"the signature is gone":         func(w *world, ref string) { w.untag(ref) },
		"the registry is away":          func(w *world, _ string) { w.down.Store(true) },
		"it is away, and nothing known": func(w *world, _ string) { w.renew(); w.down.Store(true) },
	}
	for name, c := range map[string]struct {
		timed  bool
		after  time.Duration
		policy policies.Policy
		want   lifecycle.Action
	}{
		"signed before":             {timed: true, after: time.Second, policy: wantsSigner("team-a"), want: lifecycle.Keep},
		"signed at that time":       {timed: true, after: 0, policy: wantsSigner("team-a"), want: lifecycle.Unload},
		"signed after":              {timed: true, after: -time.Hour, policy: wantsSigner("team-a"), want: lifecycle.Unload},
		"signed at no trusted time": {after: time.Hour, policy: wantsSigner("team-a"), want: lifecycle.Unload},
	} {
		for edit, do := range edits {
			t.Run(name+", "+edit, func(t *testing.T) {
				w := newWorld(t)
				ref := w.push("xdp_count", "v1")
				if c.timed {
					w.signAt(newClock(t), ref, "team-a", at)
				} else {
					w.sign(ref, "team-a")
				}
				j := w.evaluator()
				j.SetTrust(w.trust(w.signers...))
				j.SetPolicies(w.policy(c.policy))
				a := app(ref, "count_packets", onEth0())
				runs := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
				var want map[string]int64
				if c.timed {
					want = map[string]int64{"team-a": at.Unix()}
				}
				if diff := cmp.Diff(want, runs.SignedAt); diff != "" || !slices.Equal(runs.Signers, []string{"team-a"}) {
					t.Fatalf("sealed with %v: %s", runs.Signers, diff)
				}
				do(w, ref)
				w.memory = memory{}
				j = w.evaluator()
				trust := w.revokeAfter("team-a", at.Add(c.after))
				j.SetTrust(trust)
				j.SetPolicies(w.policy(c.policy))
				s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
				s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
				s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
				// Unload protection has no say.
				move, why := s.Decide(trust.Revoked(), true)
				if move != c.want {
					t.Errorf("Decide = %s (%s), want %s; %v", move, why, c.want, s.Err)
				}
				if move == lifecycle.Unload && !strings.Contains(why, "team-a") && !strings.Contains(why, "every signer") {
					t.Errorf("the reason is %s", why)
				}
			})
		}
	}
}

// elsewhere is a registry that has an image of a world with the signature of team-b,
// whose signer names it.
type elsewhere struct {
	// away is true while it answers nothing else than 503, asked is how often it was asked.
	away    atomic.Bool
	asked   atomic.Int64
	signers []v1alpha1.BpfSigner
}

// signedElsewhere is such a registry, and the image in the world with the signature of
// team-a.
func signedElsewhere(t *testing.T, w *world) (*elsewhere, string) {
	t.Helper()
	e, other := &elsewhere{signers: slices.Clone(w.signers)}, newWorld(t)
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		if e.away.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		other.server.Config.Handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(proxy.Close)
	copied := other.push("xdp_count", "v1")
	other.raw, other.keys = w.raw, w.keys
	other.bundle(copied, "team-b")
	e.signers[1].Spec.Repository = strings.TrimPrefix(proxy.URL, "http://") + "/bpf/xdp-count"
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	return e, ref
}

// TestARepositoryThatWasAwayIsAskedAgain: while others are waiting for it, it is asked
// once in half a minute, and no less.
func TestARepositoryThatWasAwayIsAskedAgain(t *testing.T) {
	for name, policy := range map[string]policies.Policy{"asked for what is there": wantsTwo, "not asked for it": wantsSomebody} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e, ref := signedElsewhere(t, w)
			j, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
			j.SetTrust(w.trust(e.signers...))
			j.SetPolicies(w.policy(policy))
			e.away.Store(true)
			v, _ := j.Evaluate(t.Context(), req)
			if req.Digest = v.Image().Digest; req.Digest == "" {
				req.Digest = w.resolve(ref).Digest
			}
			for range 3 {
				w.now = w.now.Add(20 * time.Second)
				_, _ = j.Evaluate(t.Context(), req)
			}
			if e.asked.Load() == 0 {
				t.Fatal("it was never asked")
			}
			e.away.Store(false)
			e.asked.Store(0)
			for range 2 {
				w.now = w.now.Add(20 * time.Second)
				v, _ = j.Evaluate(t.Context(), req)
			}
			evidence := v.Evidence()
			if diff := cmp.Diff([]string{"team-a", "team-b"}, evidence.Signers()); diff != "" || !v.Allowed() || evidence.Partial {
				t.Errorf("after %d requests: allowed %v, partial %v; signers (-want +got):\n%s", e.asked.Load(), v.Allowed(), evidence.Partial, diff)
			}
		})
	}
}

// TestARepositoryOfASigner has signatures lie elsewhere, come to lie elsewhere, and the
// registry there be away.
func TestARepositoryOfASigner(t *testing.T) {
	w := newWorld(t)
	e, ref := signedElsewhere(t, w)
	j, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
	j.SetPolicies(w.policy(wantsTwo))
	before, err := j.Evaluate(t.Context(), req)
	if err != nil || before.Allowed() {
		t.Fatalf("before a signer names it: %v", err)
	}
	req.Digest = before.Image().Digest
	e.away.Store(true)
	j.SetTrust(w.trust(e.signers...))
	var away *collect.RepositoryError
	if v, err := j.Evaluate(t.Context(), req); !errors.As(err, &away) || !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("while it is away: allowed %v, %v; want that it cannot be told", v.Allowed(), err)
	}
	j.SetPolicies(w.policy(wantsSomebody))
	if v, err := j.Evaluate(t.Context(), req); err != nil || !v.Allowed() {
		t.Errorf("while it is away, and nobody there is asked for: %v", err)
	}
	e.away.Store(false)
	j.SetPolicies(w.policy(wantsTwo))
	w.now = w.now.Add(time.Minute)
	v, err := j.Evaluate(t.Context(), req)
	evidence := v.Evidence()
	if diff := cmp.Diff([]string{"team-a", "team-b"}, evidence.Signers()); err != nil || !v.Allowed() || diff != "" {
		t.Errorf("once it is there: %v; signers (-want +got):\n%s", err, diff)
	}
	before2 := w.requests.Load()
	if v, err := j.Evaluate(t.Context(), req); err != nil || !v.Allowed() || w.requests.Load() != before2 {
		t.Errorf("again: %v after %d requests", err, w.requests.Load()-before2)
	}
}

// certified is a signer of the world by certificates that end at a time, which counts
// without a log, and signs what a reference stands for under cosign's tag.
func (w *world) certified(ref string, end time.Time) v1alpha1.BpfSigner {
	w.t.Helper()
	issue := func(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
		if err != nil {
			w.t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			w.t.Fatal(err)
		}
		return certificate
	}
	born := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	rootKey, _ := plainKey(w.t)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: born, NotAfter: end.AddDate(100, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	root = issue(root, root, rootKey.Public(), rootKey)
	leafKey, _ := plainKey(w.t)
	leaf := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: born, NotAfter: end, EmailAddresses: []string{"ci@example.com"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte("https://issuer.example.com")}},
	}, root, leafKey.Public(), rootKey)
	content, sig := w.signedPayload(ref, leafKey)
	w.tagSignature(ref, content, map[string]string{
		"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig),
		"dev.sigstore.cosign/certificate":    string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})),
	})
	s := v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}
	s.Spec.Keyless = &v1alpha1.KeylessSigner{
		Identities:         []v1alpha1.IdentityMatch{{Issuer: "https://issuer.example.com", Subject: "ci@example.com"}},
		InsecureIgnoreTlog: true, InsecureIgnoreSCT: true,
		TrustedRoot: string(marshal(w.t, map[string]any{
			"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
			"certificateAuthorities": []any{map[string]any{
				"uri": "https://ca.invalid", "certChain": map[string]any{"certificates": []any{map[string]any{"rawBytes": root.Raw}}},
				"validFor": map[string]any{"start": born},
			}},
		})),
	}
	return s
}

// TestValidNowIsForgotten: what counts because its certificate is valid counts until the
// certificate ends, and what runs stays.
func TestValidNowIsForgotten(t *testing.T) {
	w := newWorld(t)
	ref, end := w.push("xdp_count", "v1"), time.Now().Add(24*time.Hour).Truncate(time.Second)
	signer := w.certified(ref, end)
	j, a := w.evaluator(), app(ref, "count_packets", onEth0())
	j.SetTrust(w.trust(signer))
	w.now = end.Add(-5 * time.Minute)
	v := mustEvaluate(t, j, a)
	if evidence := v.Evidence(); !v.Allowed() || !slices.Equal(evidence.Signers(), []string{"ci"}) {
		t.Fatalf("while it is valid: denied for %v; %+v", rules(v), evidence)
	}
	runs := sealed(t, v, gate.Stamp{UID: "u", Serial: 7})
	w.now = end
	if v := mustEvaluate(t, j, a); !v.Allowed() {
		t.Errorf("at its end: denied for %v", rules(v))
	}
	w.now = end.Add(time.Second)
	s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
	s.Verdict = mustEvaluate(t, j, a)
	if evidence := s.Verdict.Evidence(); s.Verdict.Allowed() || len(evidence.Rejected) != 1 || !strings.Contains(evidence.Rejected[0].Reason, "was valid until") {
		t.Errorf("after it: allowed %v; %+v", s.Verdict.Allowed(), evidence)
	}
	s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
	if move, why := s.Decide(nil, false); move != lifecycle.Keep {
		t.Errorf("what runs: %s (%s), want %s", move, why, lifecycle.Keep)
	}
}

// TestAnAttestationAloneIsToldOf: the condition says what would have it count.
func TestAnAttestationAloneIsToldOf(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.attest(ref, "team-a")
	j := w.evaluator()
	s := lifecycle.Observation{Request: gate.Request{Application: app(ref, "count_packets", onEth0())}}
	s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
	if got := s.Verified("").Message; s.Err != nil || s.Verdict.Allowed() || !strings.Contains(got, "an admin sets countAttestations on BpfSigner team-a") {
		t.Errorf("%v: %s", s.Err, got)
	}
	signers := []v1alpha1.BpfSigner{*w.signers[0].DeepCopy()}
	signers[0].Spec.CountAttestations = true
	j.SetTrust(w.trust(signers...))
	if s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request); s.Err != nil || !s.Verdict.Allowed() {
		t.Errorf("with countAttestations: %v, denied for %v", s.Err, rules(s.Verdict))
	}
}
