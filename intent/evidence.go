package intent

import (
	"encoding/json"
	"slices"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// EvidenceType is the DSSE payload type of the evidence that is sealed with an intent.
const EvidenceType = "application/vnd.skep.evidence+json"

// MaxEvidence is how many artifacts are sealed of one image.
const MaxEvidence = 16

// Artifact names a manifest next to an image that had a signature or an attestation which
// counted. It says where to look and nothing more: what is there is verified again.
type Artifact struct {
	// Kind is that of package collect.
	Kind string `json:"kind"`
	// Manifest is the digest of the manifest, as sha256:….
	Manifest string `json:"manifest"`
}

// evidence is what is sealed of the versions of one intent, by the digest of their image.
type evidence map[string][]Artifact

// withEvidence is an envelope with its evidence. That is signed by itself and next to the
// payload: an agent that does not know it reads the payload as before.
type withEvidence struct {
	dsse.Envelope
	Evidence json.RawMessage `json:"evidence,omitempty"`
}

// addEvidence adds to an envelope the evidence of the payload's versions, if there is some
// and the envelope has room for it.
func (s *Sealer) addEvidence(e Envelope, p Payload) (Envelope, error) {
	all := evidence{}
	for _, v := range p.Versions() {
		if v.Evidence != nil && len(all[v.ImageDigest]) == 0 {
			all[v.ImageDigest] = v.Evidence[:min(len(v.Evidence), MaxEvidence)]
		}
	}
	if len(all) == 0 {
		return e, nil
	}
	body, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	signed, err := s.Sign(EvidenceType, body)
	if err != nil {
		return nil, err
	}
	both := withEvidence{Evidence: json.RawMessage(signed)}
	if err := json.Unmarshal(e, &both.Envelope); err != nil {
		return nil, err
	}
	whole, err := json.Marshal(both)
	if err != nil || len(whole) > MaxEnvelopeBytes {
		return e, err
	}
	return whole, nil
}

// sealedEvidence is the evidence next to the payload; nil if there is none, or its seal does not
// hold.
func (o Opened) sealedEvidence() (all evidence) {
	if len(o.evidence) == 0 {
		return nil
	}
	body, err := o.trust.Verify(EvidenceType, Envelope(o.evidence))
	if err != nil || json.Unmarshal(body, &all) != nil {
		return nil
	}
	return all
}

// WithEvidence is Payload with the evidence of its versions, for evaluating and sealing them
// again. A version has nil if no evidence was sealed, and none if there was none to seal.
func (o Opened) WithEvidence() Payload {
	p, all := o.payload, o.sealedEvidence()
	p.Evidence = all[p.ImageDigest]
	if p.Previous != nil {
		previous := *p.Previous
		previous.Evidence = all[previous.ImageDigest]
		p.Previous = &previous
	}
	p.Withdrawn = slices.Clone(p.Withdrawn)
	for i := range p.Withdrawn {
		p.Withdrawn[i].Evidence = all[p.Withdrawn[i].ImageDigest]
	}
	return p
}
