package signing

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The kinds of a Signature.
const (
	KindKey     = "key"
	KindKeyless = "keyless"
)

// Trust is a set of signers, ready to try signatures against. It is immutable
// and safe for concurrent use.
//
// Revocation wins: where a revoked signer recognises a signature as its own,
// the signature counts for nobody, even if another signer has the same key.
type Trust struct {
	parties  []*party
	revision string
}

// party is one signer: a name, and the ways to tell that a signature is its.
// Passing one of the ways is enough.
type party struct {
	name        string
	kind        string
	revoked     bool
	annotations map[string]string
	// material has the logs and timestamp authorities that count; nil where none do.
	material root.TrustedMaterial
	// legacy ways check cosign's simple signing payloads and DSSE envelopes,
	// bundled ways check sigstore bundles.
	legacy  []cosign.CheckOpts
	bundled []bundleCheck
}

// bundleCheck is one way to check a sigstore bundle.
type bundleCheck struct {
	verifier *verify.Verifier
	policy   []verify.PolicyOption
}

// NewTrust parses signers. It fails closed and keeps the rest running: the
// error joins one error for every signer that cannot be used (each names the
// signer, what is wrong and the remedy), and the Trust, which is never nil,
// holds the others. A caller that wants all or nothing stops at the error; a
// caller that goes on trusts less than was written, never more. Two signers of
// one name are both left out, since neither can be told to be the one meant.
func NewTrust(signers []v1alpha1.BpfSigner) (*Trust, error) {
	sorted := slices.Clone(signers)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.BpfSigner) int { return strings.Compare(a.Name, b.Name) })
	revision, err := revisionOf(sorted)
	if err != nil {
		return &Trust{}, err
	}
	t := &Trust{revision: revision}
	times := map[string]int{}
	for _, s := range sorted {
		times[s.Name]++
	}
	var errs []error
	for name, n := range times {
		if n > 1 {
			errs = append(errs, fmt.Errorf("parse signer %q: %d signers have this name and none of them is used: give each its own metadata.name", name, n))
		}
	}
	for i := range sorted {
		if times[sorted[i].Name] > 1 {
			continue
		}
		p, err := newParty(&sorted[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("parse signer %q: %w", sorted[i].Name, err))
			continue
		}
		t.parties = append(t.parties, p)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return t, errors.Join(errs...)
}

// Revision identifies the signers as they were written, revoked and unusable
// ones included: sha256:… over their canonical form. Evidence made with one
// revision says nothing about another.
func (t *Trust) Revision() string { return t.revision }

// Names returns the names of the signers that can be used and are not revoked,
// sorted.
func (t *Trust) Names() []string { return t.names(false) }

// Revoked returns the names of the usable signers whose trust was taken away,
// sorted.
func (t *Trust) Revoked() []string { return t.names(true) }

// Recorded is the evidence that a record of names amounts to, where no signature
// can be had: the named signers that are known, revoked or not. It answers whether
// policies deny what was admitted by them; nothing is allowed by it.
func (t *Trust) Recorded(digest string, names []string) Evidence {
	e := Evidence{Digest: digest, TrustRevision: t.revision, Signatures: []Signature{}, Attestations: []Attestation{}}
	for _, p := range t.parties {
		if slices.Contains(names, p.name) {
			e.Signatures = append(e.Signatures, Signature{Signer: p.name, Kind: p.kind})
		}
	}
	e.tidy()
	return e
}

func (t *Trust) names(revoked bool) []string {
	var names []string
	for _, p := range t.parties {
		if p.revoked == revoked {
			names = append(names, p.name)
		}
	}
	return names
}

// revisionOf hashes name and spec of signers that are sorted by name.
func revisionOf(sorted []v1alpha1.BpfSigner) (string, error) {
	type entry struct {
		Name string                 `json:"name"`
		Spec v1alpha1.BpfSignerSpec `json:"spec"`
	}
	entries := make([]entry, len(sorted))
	for i, s := range sorted {
		entries[i] = entry{Name: s.Name, Spec: s.Spec}
	}
	b, err := json.Marshal(entries)
	if err != nil {
		return "", fmt.Errorf("encode signers: %w", err)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func newParty(s *v1alpha1.BpfSigner) (*party, error) {
	p := &party{name: s.Name, revoked: s.Spec.Revoked, annotations: s.Spec.Annotations}
	switch {
	case s.Name == "":
		return nil, errors.New("it has no name: set metadata.name")
	case s.Spec.Key != nil && s.Spec.Keyless != nil:
		return nil, errors.New("spec.key and spec.keyless are both given: keep one and move the other to a signer of its own")
	case s.Spec.Key != nil:
		p.kind = KindKey
		return p, p.useKey(s.Spec.Key)
	case s.Spec.Keyless != nil:
		p.kind = KindKeyless
		return p, p.useKeyless(s.Spec.Keyless)
	}
	return nil, errors.New("neither spec.key nor spec.keyless is given: set spec.key.publicKey to the contents of cosign.pub")
}

// useKey adds the ways to recognise signatures of one key. A key signature
// needs no log and no time: no trusted root comes with it to check them by.
func (p *party) useKey(k *v1alpha1.KeySigner) error {
	verifiers, err := parsePublicKey(k.PublicKey)
	if err != nil {
		return err
	}
	for _, v := range verifiers {
		p.legacy = append(p.legacy, cosign.CheckOpts{SigVerifier: v, IgnoreTlog: true, Offline: true})
		key := root.NewExpiringKey(v, zeroTime, zeroTime)
		material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) { return key, nil })
		sv, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
		if err != nil {
			return fmt.Errorf("build verifier: %w", err)
		}
		p.bundled = append(p.bundled, bundleCheck{sv, []verify.PolicyOption{verify.WithKey()}})
	}
	return nil
}

// useKeyless adds the ways to recognise signatures of an identity. The strict
// way asks for an entry in a transparency log. Where the signer does without, a
// timestamp authority's word is asked for next, and at last, with no witness to
// the time, the certificate must be valid now. An entry that is there must be true
// in any case: see witness.
func (p *party) useKeyless(k *v1alpha1.KeylessSigner) error {
	material, err := parseTrustedRoot(k)
	if err != nil {
		return err
	}
	identities, matchers, err := parseIdentities(k.Identities)
	if err != nil {
		return err
	}
	strict := cosign.CheckOpts{
		TrustedMaterial: material,
		Identities:      identities,
		IgnoreSCT:       k.InsecureIgnoreSCT,
		Offline:         true,
	}
	p.material = material
	p.legacy = append(p.legacy, strict)
	ways := [][]verify.VerifierOption{{verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1)}}
	if k.InsecureIgnoreTlog {
		stamped, present := strict, strict
		stamped.IgnoreTlog, stamped.UseSignedTimestamps = true, true
		present.IgnoreTlog = true
		p.legacy = append(p.legacy, stamped, present)
		ways = append(ways,
			[]verify.VerifierOption{verify.WithSignedTimestamps(1)},
			[]verify.VerifierOption{verify.WithCurrentTime()})
	}
	for _, options := range ways {
		if !k.InsecureIgnoreSCT {
			options = append(options, verify.WithSignedCertificateTimestamps(1))
		}
		sv, err := verify.NewVerifier(material, options...)
		if err != nil {
			return fmt.Errorf("build verifier: %w", err)
		}
		p.bundled = append(p.bundled, bundleCheck{sv, matchers})
	}
	return nil
}

// parseTrustedRoot reads the trusted root and refuses one that could never
// vouch for anything, because what is asked for is not in it.
func parseTrustedRoot(k *v1alpha1.KeylessSigner) (*root.TrustedRoot, error) {
	const remedy = "paste the trusted_root.json of your sigstore instance"
	if strings.TrimSpace(k.TrustedRoot) == "" {
		return nil, fmt.Errorf("spec.keyless.trustedRoot is empty, and nothing is fetched: %s", remedy)
	}
	var material *root.TrustedRoot
	err := guarded(func() (err error) {
		material, err = root.NewTrustedRootFromJSON([]byte(k.TrustedRoot))
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("spec.keyless.trustedRoot does not parse: %s: %w", remedy, err)
	case len(material.FulcioCertificateAuthorities()) == 0:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no certificate authority: %s", remedy)
	case len(material.RekorLogs()) == 0 && !k.InsecureIgnoreTlog:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no transparency log: %s, or set insecureIgnoreTlog", remedy)
	case len(material.CTLogs()) == 0 && !k.InsecureIgnoreSCT:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no certificate transparency log: %s, or set insecureIgnoreSCT", remedy)
	}
	return material, nil
}

// parseIdentities gives each identity in the words of both verifiers. Issuer
// and subject must both be limited, each in one way: half an identity would
// trust everyone an issuer knows, or everyone who can name an issuer.
func parseIdentities(in []v1alpha1.IdentityMatch) ([]cosign.Identity, []verify.PolicyOption, error) {
	if len(in) == 0 {
		return nil, nil, errors.New("spec.keyless.identities is empty, which would trust everyone the authority knows: list issuer and subject of who may sign")
	}
	identities := make([]cosign.Identity, 0, len(in))
	policy := make([]verify.PolicyOption, 0, len(in))
	for i, m := range in {
		issuer, err := parseMatch(m.Issuer, m.IssuerRegExp)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.keyless.identities[%d]: issuer: %w", i, err)
		}
		subject, err := parseMatch(m.Subject, m.SubjectRegExp)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.keyless.identities[%d]: subject: %w", i, err)
		}
		identities = append(identities, cosign.Identity{
			Issuer: m.Issuer, IssuerRegExp: issuer, Subject: m.Subject, SubjectRegExp: subject,
		})
		certificate, err := verify.NewShortCertificateIdentity(m.Issuer, issuer, m.Subject, subject)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.keyless.identities[%d]: %w", i, err)
		}
		policy = append(policy, verify.WithCertificateIdentity(certificate))
	}
	return identities, policy, nil
}

// parseMatch returns the expression anchored to the whole string, or nothing
// for an exact value. The expression is compiled by itself first, so that it
// cannot close the group the anchors hold.
func parseMatch(exact, expression string) (string, error) {
	switch {
	case exact == "" && expression == "":
		return "", errors.New("it is not limited: give the exact value or a regular expression (.* for any)")
	case exact != "" && expression != "":
		return "", errors.New("an exact value and a regular expression are both given: keep one")
	case expression == "":
		return "", nil
	}
	if _, err := regexp.Compile(expression); err != nil {
		return "", fmt.Errorf("the regular expression does not compile: write it in RE2 syntax: %w", err)
	}
	return `\A(?:` + expression + `)\z`, nil
}

// guarded turns a panic of a parser that was handed untrusted bytes into an
// error: what cannot be read does not count, and nothing else goes down.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it is malformed in a way the parser stumbles over")
		}
	}()
	return f()
}
