package signing_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

const (
	thisImage  = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	otherImage = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// The predicate types of a signature and of an attestation.
const (
	cosignPredicate = "https://sigstore.dev/cosign/sign/v1"
	provenance      = "https://slsa.dev/provenance/v1"
)

func simplePayload(t *testing.T, digest string, annotations map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(payload.SimpleContainerImage{
		Critical: payload.Critical{
			Identity: payload.Identity{DockerReference: "registry.example.com/bpf/counter"},
			Image:    payload.Image{DockerManifestDigest: digest},
			Type:     payload.CosignSignatureType,
		},
		Optional: annotations,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func statementOf(t *testing.T, digest, predicateType string, predicate any, annotations map[string]any) []byte {
	t.Helper()
	subject := map[string]any{"digest": map[string]string{"sha256": strings.TrimPrefix(digest, "sha256:")}}
	if annotations != nil {
		subject["annotations"] = annotations
	}
	b, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": []any{subject},
		"predicateType": predicateType, "predicate": predicate,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// forms are the three ways to store a keyless word about an image. Each makes
// an artifact about a digest.
var forms = map[string]func(*testing.T, *authority, identity, string, witness) collect.Artifact{
	"legacy signature": func(t *testing.T, a *authority, i identity, digest string, w witness) collect.Artifact {
		return a.legacy(t, i, simplePayload(t, digest, nil), w)
	},
	"bundled signature": func(t *testing.T, a *authority, i identity, digest string, w witness) collect.Artifact {
		return a.bundle(t, i, statementOf(t, digest, cosignPredicate, map[string]any{}, nil), w)
	},
	"legacy attestation": func(t *testing.T, a *authority, i identity, digest string, w witness) collect.Artifact {
		return a.legacyAttestation(t, i, statementOf(t, digest, "https://example.com/scan/v1", map[string]any{"found": 0}, nil), w)
	},
	"bundled attestation": func(t *testing.T, a *authority, i identity, digest string, w witness) collect.Artifact {
		return a.bundle(t, i, statementOf(t, digest, "https://example.com/scan/v1", map[string]any{"found": 0}, nil), w)
	},
}

// about is one case: how the artifact is made, and who is asked.
type about struct {
	digest     string
	issuer     string
	subject    string
	withoutSCT bool
	// issuedAgo and seenAgo are how long ago the certificate was given out and
	// the signature witnessed.
	issuedAgo, seenAgo time.Duration
	logged, stamped    bool
	signer             func(*v1alpha1.KeylessSigner)
	// foreign takes the certificate, and the witnesses, from somebody else's
	// authority.
	foreign bool
	counts  bool
	// because is a part of the reason for which it does not count.
	because string
}

func keylessCases() map[string]about {
	ignoreTlog := func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreTlog = true }
	identified := func(m v1alpha1.IdentityMatch) func(*v1alpha1.KeylessSigner) {
		return func(k *v1alpha1.KeylessSigner) { k.Identities = []v1alpha1.IdentityMatch{m} }
	}
	old := 24 * time.Hour
	return map[string]about{
		"logged while the certificate was valid, which it is no more": {issuedAgo: old, seenAgo: old - time.Minute, logged: true, counts: true},
		"logged and stamped": {
			issuedAgo: time.Minute, logged: true, stamped: true, counts: true, seenAgo: 30 * time.Second,
		},
		"logged after the certificate expired":                              {issuedAgo: old, seenAgo: old - time.Hour, logged: true},
		"logged before the certificate was issued":                          {issuedAgo: old, seenAgo: old + time.Hour, logged: true},
		"nobody witnessed it":                                               {issuedAgo: time.Minute},
		"nobody witnessed it and the signer does without a log":             {issuedAgo: time.Minute, signer: ignoreTlog, counts: true},
		"nobody witnessed it, the certificate expired, and no log is asked": {issuedAgo: old, signer: ignoreTlog, because: "was valid until"},
		"by another person, nobody witnessed it, and no log is asked": {
			issuedAgo: time.Minute, signer: ignoreTlog, subject: "mallory@example.com", because: "mallory@example.com",
		},
		"by another person, only stamped, and no log is asked": {
			issuedAgo: old, seenAgo: old - time.Minute, stamped: true, signer: ignoreTlog, subject: "mallory@example.com", because: "mallory@example.com",
		},
		"only stamped, with a certificate that expired since, and the signer does without a log": {
			issuedAgo: old, seenAgo: old - time.Minute, stamped: true, signer: ignoreTlog, counts: true,
		},
		"only stamped, after the certificate expired, and the signer does without a log": {
			issuedAgo: old, seenAgo: old - time.Hour, stamped: true, signer: ignoreTlog,
		},
		"only stamped": {issuedAgo: 30 * time.Second, seenAgo: 20 * time.Second, stamped: true},
		"logged and the signer does without a log": {issuedAgo: old, seenAgo: old - time.Minute, logged: true, signer: ignoreTlog, counts: true},
		"about another image":                      {digest: otherImage, issuedAgo: time.Minute, logged: true, because: "about another image"},
		"by another person of the same issuer": {
			subject: "mallory@example.com", issuedAgo: time.Minute, logged: true, because: "mallory@example.com",
		},
		"by the person of that name at another issuer": {
			issuer: "https://token.mallory.example", issuedAgo: time.Minute, logged: true, because: "token.mallory.example",
		},
		"by an authority that is not in the trusted root":  {foreign: true, issuedAgo: time.Minute, logged: true},
		"with a certificate that no certificate log knows": {withoutSCT: true, issuedAgo: time.Minute, logged: true},
		"with such a certificate and the signer does without SCT": {
			withoutSCT: true, issuedAgo: time.Minute, logged: true, counts: true, signer: func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreSCT = true },
		},
		"a regular expression matches issuer and subject": {
			issuedAgo: time.Minute, logged: true, counts: true,
			signer: identified(v1alpha1.IdentityMatch{IssuerRegExp: `https://token\..*`, SubjectRegExp: `release|ops@example\.com|.*@example\.com`}),
		},
		"a regular expression matches only the beginning of the subject": {
			issuedAgo: time.Minute, logged: true, subject: "release@example.com.mallory.example",
			signer: identified(v1alpha1.IdentityMatch{Issuer: issuer, SubjectRegExp: `release@example\.com`}), because: "mallory",
		},
		"a regular expression with an alternative matches only a part": {
			issuedAgo: time.Minute, logged: true, subject: "release@example.com.mallory.example",
			signer: identified(v1alpha1.IdentityMatch{Issuer: issuer, SubjectRegExp: `ops@example\.com|release@example\.com`}), because: "mallory",
		},
		"the second identity of the signer matches": {
			issuedAgo: time.Minute, logged: true, counts: true,
			signer: func(k *v1alpha1.KeylessSigner) {
				k.Identities = append([]v1alpha1.IdentityMatch{{Issuer: issuer, Subject: "ops@example.com"}}, k.Identities...)
			},
		},
	}
}

func TestKeyless(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	for sentence, c := range keylessCases() {
		for form, make := range forms {
			t.Run(form+" "+sentence, func(t *testing.T) {
				who := a
				if c.foreign {
					who = stranger
				}
				now := time.Now().Truncate(time.Second)
				i := who.certify(t, or(c.issuer, issuer), or(c.subject, subject), now.Add(-c.issuedAgo), c.withoutSCT)
				w := witness{at: now.Add(-c.seenAgo), logged: c.logged, stamped: c.stamped}
				artifact := make(t, who, i, or(c.digest, thisImage), w)
				signer := a.signer(t, "ci")
				if c.signer != nil {
					c.signer(signer.Spec.Keyless)
				}
				e := verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact}})
				if !c.counts {
					mustReject(t, e, c.because)
					return
				}
				if hangs := !c.logged && !c.stamped; hangs != e.Until.Equal(i.cert.NotAfter) || hangs == e.Until.IsZero() {
					t.Errorf("it counts until %s, its certificate until %s", e.Until, i.cert.NotAfter)
				}
				e.Until, e.Counted = time.Time{}, nil
				mustCount(t, e, strings.Contains(form, "attestation"), w)
			})
		}
	}
}

// TestValidNowEnds has what counts because its certificate is valid be verified later.
func TestValidNowEnds(t *testing.T) {
	a := newAuthority(t)
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	signer := a.signer(t, "ci", func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreTlog = true })
	for form, make := range forms {
		for sentence, c := range map[string]struct {
			witness witness
			later   time.Duration
			counts  bool
		}{
			"at its end":                 {witness{}, 10 * time.Minute, true},
			"after it":                   {witness{}, 10*time.Minute + time.Second, false},
			"after it, and it is logged": {witness{at: at, logged: true}, 24 * time.Hour, true},
			"after it, and it is timed":  {witness{at: at, stamped: true}, 24 * time.Hour, true},
		} {
			t.Run(form+" "+sentence, func(t *testing.T) {
				i := a.certify(t, issuer, subject, at, false)
				found := collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{make(t, a, i, thisImage, c.witness)}}
				e := verifyAt(t, trustOf(t, signer), found, at.Add(c.later))
				if !c.counts {
					mustReject(t, e, "its certificate was valid until")
				} else if len(e.Signatures)+len(e.Attestations) != 1 {
					t.Errorf("got %+v", e)
				}
				if now := verify(t, trustOf(t, signer), found); now.Holds(at.Add(c.later)) != c.counts {
					t.Errorf("it holds until %s", now.Until)
				}
			})
		}
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func mustReject(t *testing.T, e signing.Evidence, because string) {
	t.Helper()
	if len(e.Signatures)+len(e.Attestations) != 0 {
		t.Errorf("it counts: %+v", e)
	}
	if len(e.Rejected) != 1 || !strings.Contains(e.Rejected[0].Reason, because) {
		t.Errorf("rejected as %+v, want one reason with %q", e.Rejected, because)
	}
}

func mustCount(t *testing.T, e signing.Evidence, attestation bool, w witness) {
	t.Helper()
	want := signing.Evidence{Digest: e.Digest, TrustRevision: e.TrustRevision, Signatures: []signing.Signature{}, Attestations: []signing.Attestation{}}
	var at time.Time
	if w.logged || w.stamped {
		at = w.at.UTC()
	}
	if attestation {
		want.Attestations = append(want.Attestations, signing.Attestation{
			Signer: "ci", Kind: signing.KindKeyless, Issuer: issuer, Subject: subject, Time: at,
			PredicateType: "https://example.com/scan/v1", Predicate: json.RawMessage(`{"found":0}`),
		})
	} else {
		want.Signatures = append(want.Signatures, signing.Signature{Signer: "ci", Kind: signing.KindKeyless, Issuer: issuer, Subject: subject, Time: at})
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("evidence (-want +got):\n%s", diff)
	}
}

func TestKeylessMaterialThatWasAltered(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	i := a.certify(t, issuer, subject, now.Add(-time.Minute), false)
	w := witness{at: now, logged: true}
	other := a.legacy(t, a.certify(t, issuer, subject, now.Add(-time.Minute), false), simplePayload(t, thisImage, nil), w)
	for sentence, alter := range map[string]func(collect.Artifact){
		"the certificate of another signature": func(s collect.Artifact) {
			s.Annotations[static.CertificateAnnotationKey] = other.Annotations[static.CertificateAnnotationKey]
		},
		"the log entry of another signature": func(s collect.Artifact) {
			s.Annotations[static.BundleAnnotationKey] = other.Annotations[static.BundleAnnotationKey]
		},
		"another signature": func(s collect.Artifact) {
			s.Annotations[static.SignatureAnnotationKey] = other.Annotations[static.SignatureAnnotationKey]
		},
		"no certificate": func(s collect.Artifact) { delete(s.Annotations, static.CertificateAnnotationKey) },
		"a certificate that is none": func(s collect.Artifact) {
			s.Annotations[static.CertificateAnnotationKey] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		},
		"PEM without a certificate":          func(s collect.Artifact) { s.Annotations[static.CertificateAnnotationKey] = "nothing" },
		"a log entry whose body is a number": func(s collect.Artifact) { s.Annotations[static.BundleAnnotationKey] = `{"Payload":{"body":7}}` },
		"a log entry whose body is no entry": func(s collect.Artifact) { s.Annotations[static.BundleAnnotationKey] = `{"Payload":{"body":"e30="}}` },
		"a log entry that is no JSON":        func(s collect.Artifact) { s.Annotations[static.BundleAnnotationKey] = `{` },
		"a timestamp that is no JSON":        func(s collect.Artifact) { s.Annotations[static.RFC3161TimestampAnnotationKey] = `{` },
		"a log entry whose log moved it in time": func(s collect.Artifact) {
			s.Annotations[static.BundleAnnotationKey] = later(t, s.Annotations[static.BundleAnnotationKey])
		},
		"a log entry with a key that is no PEM": func(s collect.Artifact) {
			s.Annotations[static.BundleAnnotationKey] = `{"Payload":{"body":"` + badKeyEntry + `"}}`
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := a.legacy(t, i, simplePayload(t, thisImage, nil), w)
			alter(s)
			e := verify(t, trustOf(t, a.signer(t, "ci")), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{s}})
			mustReject(t, e, "tag: ")
			if reason := e.Rejected[0].Reason; strings.ContainsAny(reason, "\n\t") || strings.Contains(reason, "BEGIN") {
				t.Errorf("the reason is not fit to print: %q", reason)
			}
		})
	}
}

func TestATimestampThatIsNone(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	for sentence, c := range map[string]struct {
		issuedAgo time.Duration
		logged    bool
		counts    bool
	}{
		"a log entry vouches for the time":                    {time.Minute, true, true},
		"the certificate is valid still":                      {time.Minute, false, true},
		"nothing else vouches for the time of an expired one": {time.Hour, false, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			at := now.Add(-c.issuedAgo)
			s := a.legacy(t, a.certify(t, issuer, subject, at, false), simplePayload(t, thisImage, nil), witness{at: at, logged: c.logged})
			s.Annotations[static.RFC3161TimestampAnnotationKey] = `{"SignedRFC3161Timestamp":"AAAA"}`
			signer := a.signer(t, "ci", func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreTlog = true })
			e := verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{s}})
			if got := len(e.Signatures) == 1; got != c.counts {
				t.Errorf("counts: %v, want %v: %+v", got, c.counts, e)
			}
		})
	}
}

// badKeyEntry is a log entry whose public key is base64 of "no key".
const badKeyEntry = "eyJhcGlWZXJzaW9uIjoiMC4wLjEiLCJraW5kIjoiaGFzaGVkcmVrb3JkIiwic3BlYyI6eyJkYXRhIjp7Imhhc2giOnsiYWxnb3JpdGhtIjoic2hhMjU2Iiwi" +
	"dmFsdWUiOiIxMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExIn19LCJzaWduYXR1cmUiOnsi" +
	"Y29udGVudCI6ImJtOD0iLCJwdWJsaWNLZXkiOnsiY29udGVudCI6ImJtOGdhMlY1In19fX0="

func later(t *testing.T, entry string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(entry), &m); err != nil {
		t.Fatal(err)
	}
	p := m["Payload"].(map[string]any)
	p["integratedTime"] = int64(p["integratedTime"].(float64)) + 1
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBundlesThatAreMalformed(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	good := a.bundle(t, a.certify(t, issuer, subject, now.Add(-time.Minute), false),
		statementOf(t, thisImage, cosignPredicate, map[string]any{}, nil), witness{at: now, logged: true})
	var whole map[string]any
	if err := json.Unmarshal(good.Content, &whole); err != nil {
		t.Fatal(err)
	}
	for sentence, c := range map[string]struct{ content, want string }{
		"nothing":                       {"", "it is not a sigstore bundle"},
		"an empty object":               {"{}", "it is not a sigstore bundle"},
		"null":                          {"null", "it is not a sigstore bundle"},
		"a version that does not exist": {strings.Replace(string(good.Content), "v0.3", "v9.9", 1), "it is not a sigstore bundle"},
		"no verification material":      {without(t, good.Content, "verificationMaterial"), "it is not a sigstore bundle"},
		"no content":                    {without(t, good.Content, "dsseEnvelope"), "it is not a sigstore bundle"},
		"an envelope with another payload type": {
			strings.Replace(string(good.Content), "application/vnd.in-toto+json", "text/plain", 1), "not an in-toto statement",
		},
		"an unknown field": {strings.Replace(string(good.Content), `{`, `{"extra":1,`, 1), "it is not a sigstore bundle"},
		"a message signature without any digest": {
			`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{}},"messageSignature":{}}`, "it is about another image",
		},
		"deep nesting":   {strings.Repeat(`{"a":`, 8000), "it is not a sigstore bundle"},
		"deeper nesting": {strings.Repeat(`{"a":`, 100000), "it holds 100000 values"},
	} {
		t.Run(sentence, func(t *testing.T) {
			artifact := collect.Artifact{Kind: collect.Bundle, Origin: "referrer", Content: []byte(c.content)}
			e := verify(t, trustOf(t, a.signer(t, "ci")), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact, good}})
			if len(e.Signatures) != 1 || len(e.Rejected) != 1 || !strings.Contains(e.Rejected[0].Reason, c.want) {
				t.Errorf("want the good one to count and the other rejected, got %+v", e)
			}
		})
	}
}

func without(t *testing.T, content []byte, field string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(content, &m); err != nil {
		t.Fatal(err)
	}
	if _, ok := m[field]; !ok {
		t.Fatalf("there is no %s in %s", field, content)
	}
	delete(m, field)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestKeylessAnnotations(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	i := a.certify(t, issuer, subject, now.Add(-time.Minute), false)
	w := witness{at: now, logged: true}
	signer := a.signer(t, "ci")
	signer.Spec.Annotations = map[string]string{"env": "prod"}
	for sentence, c := range map[string]struct {
		annotations map[string]any
		counts      bool
	}{
		"the annotation is there":          {map[string]any{"env": "prod", "run": "7"}, true},
		"the annotation has another value": {map[string]any{"env": "test"}, false},
		"the annotation is not there":      {nil, false},
		"the annotation is not a string":   {map[string]any{"env": []any{"prod"}}, false},
	} {
		for form, artifact := range map[string]collect.Artifact{
			"legacy":  a.legacy(t, i, simplePayload(t, thisImage, c.annotations), w),
			"bundled": a.bundle(t, i, statementOf(t, thisImage, cosignPredicate, map[string]any{}, c.annotations), w),
		} {
			t.Run(fmt.Sprintf("%s: %s", form, sentence), func(t *testing.T) {
				e := verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact}})
				if !c.counts {
					mustReject(t, e, "env=prod")
					if e.Rejected[0].Signer != "ci" {
						t.Errorf("rejected for %q, want ci", e.Rejected[0].Signer)
					}
					return
				}
				if want := map[string]string{"env": "prod", "run": "7"}; len(e.Signatures) != 1 || !cmp.Equal(want, e.Signatures[0].Annotations) {
					t.Errorf("got %+v", e)
				}
			})
		}
	}
}
