package signing_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// FuzzVerify holds that nothing a stranger can store beside an image counts, or
// stops the others from counting, or brings the process down.
func FuzzVerify(f *testing.F) {
	for kind, content := range map[collect.Kind]string{
		collect.LegacySignature: `{"critical":{"identity":{},"image":{"docker-manifest-digest":"` + thisImage +
			`"},"type":"cosign container image signature"},"optional":{"env":"prod"}}`,
		collect.LegacyAttestation: `{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":"AAAA"}]}`,
		collect.Bundle: `{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"a"}},` +
			`"messageSignature":{"messageDigest":{"algorithm":"SHA2_256","digest":"ERERERERERERERERERERERERERERERERERERERERERE="},"signature":"AAAA"}}`,
	} {
		f.Add(string(kind), []byte(content), []byte(`{}`))
		f.Add(string(kind), []byte(content),
			[]byte(`{"dev.cosignproject.cosign/signature":"AAAA","dev.sigstore.cosign/certificate":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",`+
				`"dev.sigstore.cosign/bundle":"{\"Payload\":{\"body\":\"`+badKeyEntry+
				`\"}}","dev.sigstore.cosign/rfc3161timestamp":"{\"SignedRFC3161Timestamp\":\"AAAA\"}"}`))
	}
	var trust *signing.Trust
	var good collect.Artifact
	f.Fuzz(func(t *testing.T, kind string, content, annotations []byte) {
		if trust == nil {
			a := newAuthority(t)
			now := time.Now().Truncate(time.Second)
			good = a.legacy(t, a.certify(t, issuer, subject, now.Add(-time.Minute), false), simplePayload(t, thisImage, nil), witness{at: now, logged: true})
			_, key := newKey(t, "key")
			trust = trustOf(t, key, a.signer(t, "ci"), a.signer(t, "loose", func(k *v1alpha1.KeylessSigner) {
				k.InsecureIgnoreTlog, k.InsecureIgnoreSCT = true, true
			}))
		}
		strange := collect.Artifact{Kind: collect.Kind(kind), Origin: "fuzz", Content: content}
		if json.Unmarshal(annotations, &strange.Annotations) != nil {
			strange.Annotations = nil
		}
		e := verify(t, trust, collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{strange, good}})
		if len(e.Signatures) != 2 || len(e.Attestations) != 0 || len(e.Rejected) == 0 {
			t.Errorf("got %+v", e)
		}
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("the evidence is no JSON: %v", err)
		}
	})
}
