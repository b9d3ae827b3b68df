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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
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
	parties  []*signer
	revision string
	// repositories are where signatures lie as well as beside images.
	repositories []string
}

// signer is one signer: a name, and the ways to tell that a signature is its.
// Passing one of the ways is enough.
type signer struct {
	name string
	kind string
	// key is the SHA-256 of the public key in hex; empty for a keyless party.
	key string
	// revocation is nil where the party is trusted.
	revocation *Revocation
	// countAttestations has its attestations count as signatures too.
	countAttestations bool
	// present has a certificate count that is valid now, where nobody saw the signature.
	present bool
	demands demands
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
// signer, what is wrong and the fix), and the Trust, which is never nil,
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
	for known, n := range times {
		if n > 1 {
			errs = append(errs, fmt.Errorf("parse signer %q: %d signers have this name and none of them is used: give each its own metadata.name", known, n))
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
		if r := sorted[i].Spec.Repository; r != "" {
			t.repositories = append(t.repositories, r)
		}
	}
	slices.Sort(t.repositories)
	t.repositories = slices.Compact(t.repositories)
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return t, errors.Join(errs...)
}

// Revision identifies the signers as they were written, revoked and unusable
// ones included: sha256:… over their canonical form. Evidence made with one
// revision says nothing about another.
func (t *Trust) Revision() string { return t.revision }

// Repositories are where the signers' signatures lie as well as beside images, sorted.
func (t *Trust) Repositories() []string { return t.repositories }

// Names returns the names of the signers that can be used and are not revoked
// altogether, sorted.
func (t *Trust) Names() []string {
	var names []string
	for _, p := range t.parties {
		if p.revocation == nil || !p.revocation.After.IsZero() {
			names = append(names, p.name)
		}
	}
	return names
}

// Cautions are what the author of the signer of that name may not have meant, in sentences:
// that another signer has its key.
func (t *Trust) Cautions(name string) []string {
	i := slices.IndexFunc(t.parties, func(p *signer) bool { return p.name == name })
	if i < 0 || t.parties[i].key == "" {
		return nil
	}
	own := t.parties[i]
	var same, revoked []string
	for _, p := range t.parties {
		switch {
		case p == own || p.key != own.key || own.demands.excludes(p.demands):
		case p.revocation != nil:
			revoked = append(revoked, p.name)
		default:
			same = append(same, p.name)
		}
	}
	var cautions []string
	if len(revoked) > 0 {
		cautions = append(cautions,
			fmt.Sprintf("signer %s has the same key as %s, where it is revoked: what is revoked there counts for no signer; sign with another key", name, some(revoked)))
	}
	if len(same) > 0 && own.revocation == nil {
		cautions = append(cautions,
			fmt.Sprintf("signer %s has the same key as %s: one signature counts as that of each, also where a policy asks for several; give each a key of its own",
				name, some(same)))
	}
	return cautions
}

// some names the first three, and how many more there are.
func some(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Revocation is that a signer's trust was taken away.
type Revocation struct {
	// After is from when on: what was signed before, by a trusted time, stays valid.
	// Zero means all of it is revoked.
	After time.Time
}

// revokes reports whether a signature is revoked that has a trusted time, or none
// where that is zero.
func (r *Revocation) revokes(signed time.Time) bool {
	return r != nil && (r.After.IsZero() || signed.IsZero() || !signed.Before(r.After))
}

// of says that a signature is revoked, for a person to read.
func (r *Revocation) of(signed time.Time) string {
	switch {
	case r.After.IsZero():
		return "the signer is revoked: let somebody else sign"
	case signed.IsZero():
		return fmt.Sprintf("the signer is revoked after %s, and the signature has no trusted time before it: let somebody else sign", stamp(r.After))
	}
	return fmt.Sprintf("the signer is revoked after %s, and signed at %s: let somebody else sign", stamp(r.After), stamp(signed))
}

// String says since when trust is taken away.
func (r Revocation) String() string {
	if r.After.IsZero() {
		return "revoked"
	}
	return "revoked since " + stamp(r.After)
}

// Revocations are those of signers, by their names.
type Revocations map[string]Revocation

// Revokes reports whether a signature of a signer is revoked that has a trusted time,
// or none where that is zero.
func (r Revocations) Revokes(signer string, signed time.Time) bool {
	revocation, revoked := r[signer]
	return revoked && revocation.revokes(signed)
}

// Revoked returns the revocations of usable signers.
func (t *Trust) Revoked() Revocations {
	all := Revocations{}
	for _, p := range t.parties {
		if p.revocation != nil {
			all[p.name] = *p.revocation
		}
	}
	return all
}

// Recorded is the evidence that a record of signers and their trusted times amounts to,
// where no signature can be had: those that are known, revoked or not. It answers whether
// policies deny what was admitted by them; nothing is allowed by it.
func (t *Trust) Recorded(digest string, signed map[string]time.Time) Evidence {
	e := Evidence{Digest: digest, TrustRevision: t.revision, Signatures: []Signature{}, Attestations: []Attestation{}}
	for _, p := range t.parties {
		if at, recorded := signed[p.name]; recorded {
			e.Signatures = append(e.Signatures, Signature{Signer: p.name, Kind: p.kind, Time: at})
		}
	}
	e.tidy()
	return e
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

func newParty(s *v1alpha1.BpfSigner) (*signer, error) {
	if err := checkSpec(s.Spec); err != nil {
		return nil, err
	}
	p := &signer{name: s.Name, countAttestations: s.Spec.CountAttestations, demands: newDemands(s.Spec)}
	switch {
	case s.Spec.Revoked:
		p.revocation = &Revocation{}
	case s.Spec.RevokedAfter != nil:
		p.revocation = &Revocation{After: s.Spec.RevokedAfter.UTC()}
	}
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

// repositoryShape is that of the API's field: a registry, and a repository there.
var repositoryShape = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)

// checkSpec rejects what a signer of either kind cannot mean.
func checkSpec(s v1alpha1.BpfSignerSpec) error {
	_, err := name.NewRepository(s.Repository, name.StrictValidation)
	if s.Repository != "" && (err != nil || !repositoryShape.MatchString(s.Repository)) {
		return errors.New("spec.repository is no repository of a registry: write it as registry.example.com/signatures, without a tag")
	}
	if s.NotBefore != nil && s.NotAfter != nil && !s.NotBefore.Time.Before(s.NotAfter.Time) {
		return errors.New("spec.notBefore is not earlier than spec.notAfter, so that nothing would count: correct one of them")
	}
	return nil
}

// useKey adds the ways to recognise signatures of one key. By itself a key signature
// needs no log and no time; with a trusted root, both are looked for.
func (p *signer) useKey(k *v1alpha1.KeySigner) error {
	verifiers, err := parsePublicKey(k.PublicKey)
	if err != nil {
		return err
	}
	if p.key, err = fingerprint(verifiers[0]); err != nil {
		return err
	}
	var trusted *root.TrustedRoot
	if k.TrustedRoot != "" {
		if trusted, err = parseWitnesses(k); err != nil {
			return err
		}
	} else if p.demands.log || p.demands.timestamp {
		return errors.New("spec.key.trustedRoot is empty, and transparencyLog or timestamp is Required: paste the trusted_root.json of your sigstore instance")
	}
	for _, v := range verifiers {
		way := cosign.CheckOpts{SigVerifier: v, IgnoreTlog: true, Offline: true}
		key := root.NewExpiringKey(v, zeroTime, zeroTime)
		material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) { return key, nil })
		if trusted != nil {
			way.TrustedMaterial = trusted
			p.material = root.TrustedMaterialCollection{trusted, material}
		}
		p.legacy = append(p.legacy, way)
		sv, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
		if err != nil {
			return fmt.Errorf("build verifier: %w", err)
		}
		p.bundled = append(p.bundled, bundleCheck{sv, []verify.PolicyOption{verify.WithKey()}})
	}
	return nil
}

// parseWitnesses reads the trusted root of a key, and rejects one that could never
// vouch for what is asked for.
func parseWitnesses(k *v1alpha1.KeySigner) (*root.TrustedRoot, error) {
	material, err := parseRoot("spec.key.trustedRoot", k.TrustedRoot)
	switch {
	case err != nil:
		return nil, err
	case len(material.RekorLogs()) == 0 && k.TransparencyLog != "":
		return nil, fmt.Errorf("spec.key.trustedRoot names no transparency log: %s, or drop transparencyLog: Required", rootFix)
	case len(material.TimestampingAuthorities()) == 0 && k.Timestamp != "":
		return nil, fmt.Errorf("spec.key.trustedRoot names no timestamp authority: %s, or drop timestamp: Required", rootFix)
	case len(material.RekorLogs())+len(material.TimestampingAuthorities()) == 0:
		return nil, fmt.Errorf("spec.key.trustedRoot names neither a transparency log nor a timestamp authority: %s", rootFix)
	}
	return material, nil
}

// useKeyless adds the ways to recognise signatures of an identity. The strict
// way asks for an entry in a transparency log. Where the signer does without, a
// timestamp authority's word is asked for next, and at last, with no witness to
// the time, the certificate must be valid now. An entry that is there must be true
// in any case: see witness.
func (p *signer) useKeyless(k *v1alpha1.KeylessSigner) error {
	material, err := parseTrustedRoot(k)
	if err != nil {
		return err
	}
	identities, matchers, err := p.parseIdentities(k.Identities)
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
	if p.present = k.InsecureIgnoreTlog; p.present {
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

// rootFix is what fixes a trusted root.
const rootFix = "paste the trusted_root.json of your sigstore instance"

// parseRoot reads the trusted root of a field.
func parseRoot(field, text string) (material *root.TrustedRoot, err error) {
	err = guarded(func() (err error) {
		material, err = root.NewTrustedRootFromJSON([]byte(text))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s does not parse: %s: %w", field, rootFix, err)
	}
	return material, nil
}

// parseTrustedRoot reads the trusted root and rejects one that could never
// vouch for anything, because what is asked for is not in it.
func parseTrustedRoot(k *v1alpha1.KeylessSigner) (*root.TrustedRoot, error) {
	if strings.TrimSpace(k.TrustedRoot) == "" {
		return nil, fmt.Errorf("spec.keyless.trustedRoot is empty, and nothing is fetched: %s", rootFix)
	}
	material, err := parseRoot("spec.keyless.trustedRoot", k.TrustedRoot)
	switch {
	case err != nil:
		return nil, err
	case len(material.FulcioCertificateAuthorities()) == 0:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no certificate authority: %s", rootFix)
	case len(material.RekorLogs()) == 0 && !k.InsecureIgnoreTlog:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no transparency log: %s, or set insecureIgnoreTlog", rootFix)
	case len(material.CTLogs()) == 0 && !k.InsecureIgnoreSCT:
		return nil, fmt.Errorf("spec.keyless.trustedRoot names no certificate transparency log: %s, or set insecureIgnoreSCT", rootFix)
	}
	return material, nil
}

// parseIdentities gives each identity in the words of both verifiers, which compare
// issuer and subject, and in the party's own, which compare the claims too.
func (p *signer) parseIdentities(in []v1alpha1.IdentityMatch) ([]cosign.Identity, []verify.PolicyOption, error) {
	if len(in) == 0 {
		return nil, nil, errors.New("spec.keyless.identities is empty, which would trust everyone the authority knows: list issuer and subject of who may sign")
	}
	identities := make([]cosign.Identity, 0, len(in))
	policy := make([]verify.PolicyOption, 0, len(in))
	for i, m := range in {
		one, err := newIdentity(m)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.keyless.identities[%d]: %w", i, err)
		}
		p.demands.identities = append(p.demands.identities, one)
		issuer, issuerExpression := one.issuer.words()
		subject, subjectExpression := one.subject.words()
		identities = append(identities, cosign.Identity{
			Issuer: issuer, IssuerRegExp: issuerExpression, Subject: subject, SubjectRegExp: subjectExpression,
		})
		certificate, err := verify.NewShortCertificateIdentity(issuer, issuerExpression, subject, subjectExpression)
		if err != nil {
			return nil, nil, fmt.Errorf("spec.keyless.identities[%d]: %w", i, err)
		}
		policy = append(policy, verify.WithCertificateIdentity(certificate))
	}
	return identities, policy, nil
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
