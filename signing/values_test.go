package signing_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/sigstore/cosign/v2/pkg/oci/static"

	"github.com/skep-dev/skep/signing/collect"
)

// numbers are JSON of a list of so many numbers.
func numbers(n int) string { return "[" + strings.Repeat("0,", n-1) + "0]" }

// enveloped is a bundle around a statement.
func enveloped(statement string) []byte {
	payload := base64.StdEncoding.EncodeToString([]byte(statement))
	return []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"x"}},` +
		`"dsseEnvelope":{"payloadType":"application/vnd.in-toto+json","payload":"` + payload + `","signatures":[{"sig":"YQ=="}]}}`)
}

func TestASignatureOfManyValuesIsNotDecoded(t *testing.T) {
	const (
		much   = 1 << 20
		digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		about  = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
	)
	_, alice := newKey(t, "alice")
	trust := trustOf(t, alice)
	for name, test := range map[string]struct {
		artifact collect.Artifact
		want     string
	}{
		"entries of a log": {collect.Artifact{
			Kind: collect.Bundle, Content: []byte(`{"verificationMaterial":{"tlogEntries":` + numbers(much) + `}}`),
		}, "it holds 1048578 values"},
		"what a payload adds": {collect.Artifact{
			Kind: collect.LegacySignature, Content: []byte(`{"critical":{},"optional":{"a":` + numbers(much) + `}}`),
		}, "it holds 1048580 values"},
		"signatures of an envelope": {collect.Artifact{
			Kind: collect.LegacyAttestation, Content: []byte(`{"signatures":` + numbers(much) + `}`),
		}, "it holds 1048577 values"},
		"an entry of a log in an annotation": {collect.Artifact{
			Kind: collect.LegacySignature, Content: []byte(`{}`),
			Annotations: map[string]string{static.BundleAnnotationKey: `{"Payload":{"body":` + numbers(much) + `}}`},
		}, "the annotation " + static.BundleAnnotationKey + " holds 1048578 values"},
		"subjects": {collect.Artifact{
			Kind: collect.Bundle, Content: enveloped(about + "}" + strings.Repeat(",0", 10000) + `]}`),
		}, "the list of its subjects holds 10003 values"},
		"a predicate": {collect.Artifact{
			Kind: collect.Bundle, Content: enveloped(about + `}],"predicate":` + numbers(much) + `}`),
		}, "its statement holds 1048582 values"},
		"a predicate as long as a list of packages": {collect.Artifact{
			Kind: collect.Bundle, Content: enveloped(about + `}],"predicate":` + numbers(200_000) + `}`),
		}, "no key of alice made this signature"},
	} {
		t.Run(name, func(t *testing.T) {
			e := verify(t, trust, collect.Collected{Digest: digest, Artifacts: []collect.Artifact{test.artifact}})
			if len(e.Rejected) != 1 || !strings.Contains(e.Rejected[0].Reason, test.want) {
				t.Errorf("rejected %+v, want %q", e.Rejected, test.want)
			}
		})
	}
}
