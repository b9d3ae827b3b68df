package signing_test

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/sigstore/cosign/v2/pkg/oci/static"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing/collect"
)

// entryOf takes the log's entry of an artifact, to be altered.
func entryOf(t *testing.T, a collect.Artifact) map[string]any {
	t.Helper()
	if a.Kind != collect.Bundle {
		return decoded(t, []byte(a.Annotations[static.BundleAnnotationKey]))
	}
	material := decoded(t, a.Content)["verificationMaterial"].(map[string]any)
	return material["tlogEntries"].([]any)[0].(map[string]any)
}

// withEntry is the artifact with another entry of a log.
func withEntry(t *testing.T, a collect.Artifact, entry map[string]any) collect.Artifact {
	t.Helper()
	if a.Kind != collect.Bundle {
		a.Annotations = maps.Clone(a.Annotations)
		a.Annotations[static.BundleAnnotationKey] = string(encoded(t, entry))
		return a
	}
	whole := decoded(t, a.Content)
	whole["verificationMaterial"].(map[string]any)["tlogEntries"] = []any{entry}
	a.Content = encoded(t, whole)
	return a
}

func decoded(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func encoded(t *testing.T, m map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestALogEntryThatIsFalse: a signer that does without a log takes no entry that a log
// it knows did not make of this signature.
func TestALogEntryThatIsFalse(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	now := time.Now().Truncate(time.Second)
	w := witness{at: now, logged: true}
	signer := a.signer(t, "ci", func(k *v1alpha1.KeylessSigner) { k.InsecureIgnoreTlog = true })
	i := a.certify(t, issuer, subject, now.Add(-time.Minute), false)
	for form, make := range forms {
		good := make(t, a, i, thisImage, w)
		for sentence, c := range map[string]struct {
			alter  func(entry map[string]any) map[string]any
			counts bool
		}{
			"it is true": {func(e map[string]any) map[string]any { return e }, true},
			"it was moved in time": {func(e map[string]any) map[string]any {
				if payload, legacy := e["Payload"].(map[string]any); legacy {
					payload["integratedTime"] = now.Unix() - 30
				} else {
					e["integratedTime"] = "1700000000"
				}
				return e
			}, false},
			"it is of another signature": {func(map[string]any) map[string]any {
				return entryOf(t, make(t, a, a.certify(t, issuer, subject, now.Add(-time.Minute), false), thisImage, w))
			}, false},
			"it is of a log that nobody knows": {func(map[string]any) map[string]any {
				return entryOf(t, make(t, stranger, i, thisImage, w))
			}, true},
		} {
			t.Run(form+": "+sentence, func(t *testing.T) {
				artifact := withEntry(t, good, c.alter(entryOf(t, good)))
				e := verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact}})
				if !c.counts {
					mustReject(t, e, "is not true of it")
				} else if len(e.Signatures)+len(e.Attestations) != 1 {
					t.Errorf("it does not count: %+v", e)
				}
			})
		}
	}
}
