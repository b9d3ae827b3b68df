package signing_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	"github.com/digitorus/timestamp"
	"github.com/go-openapi/runtime"
	"github.com/go-openapi/swag/conv"
	ct "github.com/google/certificate-transparency-go"
	cttls "github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
	"github.com/google/certificate-transparency-go/x509util"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	rekor "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	ctypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/pki"
	rekortypes "github.com/sigstore/rekor/pkg/types"
	dssekind "github.com/sigstore/rekor/pkg/types/dsse"
	_ "github.com/sigstore/rekor/pkg/types/dsse/v0.0.1"
	"github.com/sigstore/rekor/pkg/types/hashedrekord"
	_ "github.com/sigstore/rekor/pkg/types/hashedrekord/v0.0.1"
	"github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing/collect"
)

const (
	issuer  = "https://token.example.com"
	subject = "release@example.com"
)

// authority is a sigstore instance of its own: a certificate authority, a
// certificate log, a transparency log and a timestamp authority, none of which
// anybody can reach.
type authority struct {
	root, intermediate *x509.Certificate
	intermediateKey    *ecdsa.PrivateKey
	logKey, ctKey      *ecdsa.PrivateKey
	stamper            *x509.Certificate
	stamperKey         *ecdsa.PrivateKey
	stamperChain       *x509.Certificate
	born               time.Time
	// claims go into the certificates that are given out, by the last number of their
	// extension.
	claims map[int]string
}

func newECKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func issue(t *testing.T, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{logKey: newECKey(t), ctKey: newECKey(t), intermediateKey: newECKey(t), stamperKey: newECKey(t)}
	a.born = time.Now().Add(-48 * time.Hour).Truncate(time.Second)
	rootKey := newECKey(t)
	authorityOf := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"example.com"}},
			NotBefore: a.born, NotAfter: a.born.Add(1000 * time.Hour), IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
	}
	template := authorityOf("root")
	a.root = issue(t, template, template, rootKey.Public(), rootKey)
	template = authorityOf("intermediate")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	a.intermediate = issue(t, template, a.root, a.intermediateKey.Public(), rootKey)

	chainKey := newECKey(t)
	template = authorityOf("timestamps")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageTimeStamping}
	a.stamperChain = issue(t, template, a.root, chainKey.Public(), rootKey)
	usage, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 8}})
	if err != nil {
		t.Fatal(err)
	}
	a.stamper = issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.born, NotAfter: a.born.Add(1000 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		// RFC 3161 §2.3 wants this extension critical.
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: usage}},
	}, a.stamperChain, a.stamperKey.Public(), chainKey)
	return a
}

func logOf(t *testing.T, key *ecdsa.PrivateKey, from time.Time) (string, *root.TransparencyLog) {
	t.Helper()
	id := logID(t, key)
	return hex.EncodeToString(id), &root.TransparencyLog{
		BaseURL: "https://log.invalid", ID: id, ValidityPeriodStart: from, HashFunc: crypto.SHA256,
		PublicKey: key.Public(), SignatureHashFunc: crypto.SHA256,
	}
}

func logID(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return sum[:]
}

// trustedRoot is what an admin would paste into a BpfSigner.
func (a *authority) trustedRoot(t *testing.T) string {
	t.Helper()
	rekorID, rekorLog := logOf(t, a.logKey, a.born)
	ctID, ctLog := logOf(t, a.ctKey, a.born)
	trusted, err := root.NewTrustedRoot(root.TrustedRootMediaType01,
		[]root.CertificateAuthority{&root.FulcioCertificateAuthority{
			Root: a.root, Intermediates: []*x509.Certificate{a.intermediate}, ValidityPeriodStart: a.born, URI: "https://ca.invalid",
		}},
		map[string]*root.TransparencyLog{ctID: ctLog},
		[]root.TimestampingAuthority{&root.SigstoreTimestampingAuthority{
			Root: a.root, Intermediates: []*x509.Certificate{a.stamperChain}, Leaf: a.stamper,
			ValidityPeriodStart: a.born, URI: "https://tsa.invalid",
		}},
		map[string]*root.TransparencyLog{rekorID: rekorLog})
	if err != nil {
		t.Fatal(err)
	}
	b, err := trusted.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// signer is a BpfSigner that knows the authority and the usual identity.
func (a *authority) signer(t *testing.T, name string, change ...func(*v1alpha1.KeylessSigner)) v1alpha1.BpfSigner {
	t.Helper()
	keyless := &v1alpha1.KeylessSigner{
		TrustedRoot: a.trustedRoot(t),
		Identities:  []v1alpha1.IdentityMatch{{Issuer: issuer, Subject: subject}},
	}
	for _, f := range change {
		f(keyless)
	}
	return v1alpha1.BpfSigner{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BpfSignerSpec{Keyless: keyless},
	}
}

// identity is a short-lived certificate and its key.
type identity struct {
	cert *x509.Certificate
	key  signature.SignerVerifier
	raw  *ecdsa.PrivateKey
}

// certify gives out a certificate for ten minutes from at, logged unless
// withoutSCT.
func (a *authority) certify(t *testing.T, issuer, subject string, at time.Time, withoutSCT bool) identity {
	t.Helper()
	key := newECKey(t)
	sv, err := signature.LoadECDSASignerVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return identity{cert: a.certifyKey(t, key.Public(), issuer, subject, at, withoutSCT), key: sv, raw: key}
}

// certifyKey is certify for a key that is there.
func (a *authority) certifyKey(t *testing.T, public crypto.PublicKey, issuer, subject string, at time.Time, withoutSCT bool) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), EmailAddresses: []string{subject},
		NotBefore: at, NotAfter: at.Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte(issuer)}},
	}
	for number, value := range a.claims {
		encoded, err := asn1.MarshalWithParams(value, "utf8")
		if err != nil {
			t.Fatal(err)
		}
		template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, number}, Value: encoded})
	}
	cert := issue(t, template, a.intermediate, public, a.intermediateKey)
	if withoutSCT {
		return cert
	}
	template.ExtraExtensions = append(template.ExtraExtensions, a.logCertificate(t, cert, at))
	return issue(t, template, a.intermediate, public, a.intermediateKey)
}

// logCertificate is the extension by which the certificate log says, as of RFC
// 6962 §3.3, that it knows the certificate.
func (a *authority) logCertificate(t *testing.T, precert *x509.Certificate, at time.Time) pkix.Extension {
	t.Helper()
	sct := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, Timestamp: uint64(at.UnixMilli())}
	copy(sct.LogID.KeyID[:], logID(t, a.ctKey))
	input, err := ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: ct.MerkleTreeLeaf{
		Version: ct.V1, LeafType: ct.TimestampedEntryLeafType,
		TimestampedEntry: &ct.TimestampedEntry{
			Timestamp: sct.Timestamp, EntryType: ct.PrecertLogEntryType,
			PrecertEntry: &ct.PreCert{
				IssuerKeyHash:  sha256.Sum256(a.intermediate.RawSubjectPublicKeyInfo),
				TBSCertificate: precert.RawTBSCertificate,
			},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(input)
	sig, err := ecdsa.SignASN1(rand.Reader, a.ctKey, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	sct.Signature = ct.DigitallySigned{
		Algorithm: cttls.SignatureAndHashAlgorithm{Hash: cttls.SHA256, Signature: cttls.ECDSA}, Signature: sig,
	}
	list, err := x509util.MarshalSCTsIntoSCTList([]*ct.SignedCertificateTimestamp{&sct})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := cttls.Marshal(*list)
	if err != nil {
		t.Fatal(err)
	}
	value, err := asn1.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier(ctx509.OIDExtensionCTSCT), Value: value}
}

// record makes the log's entry for a signature, at a time. Of an envelope the
// signature is nil.
func (a *authority) record(t *testing.T, content, sig, certPEM []byte, at time.Time) *models.LogEntryAnon {
	t.Helper()
	props := rekortypes.ArtifactProperties{PublicKeyBytes: [][]byte{certPEM}, PKIFormat: string(pki.X509)}
	kind, version := dssekind.KIND, dssekind.New().DefaultVersion()
	if sig == nil {
		props.ArtifactBytes = content
	} else {
		kind, version = hashedrekord.KIND, hashedrekord.New().DefaultVersion()
		sum := sha256.Sum256(content)
		props.ArtifactHash, props.SignatureBytes = hex.EncodeToString(sum[:]), sig
	}
	proposed, err := rekortypes.NewProposedEntry(t.Context(), kind, version, props)
	if err != nil {
		t.Fatal(err)
	}
	logged, _ := a.enter(t, proposed, at)
	return logged
}

// enter makes a proposed entry the log's only one, and says by which name.
func (a *authority) enter(t *testing.T, proposed models.ProposedEntry, at time.Time) (*models.LogEntryAnon, string) {
	t.Helper()
	entry, err := rekortypes.CreateVersionedEntry(proposed)
	if err != nil {
		t.Fatal(err)
	}
	body, err := rekortypes.CanonicalizeEntry(t.Context(), entry)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := models.UnmarshalProposedEntry(bytes.NewReader(body), runtime.JSONConsumer()); err != nil {
		t.Fatal(err)
	}
	logged := &models.LogEntryAnon{
		Body: base64.StdEncoding.EncodeToString(body), IntegratedTime: conv.Pointer(at.Unix()),
		LogIndex: conv.Pointer(int64(0)), LogID: conv.Pointer(hex.EncodeToString(logID(t, a.logKey))),
	}
	logged.Verification = &models.LogEntryAnonVerification{
		InclusionProof:       a.include(t, body),
		SignedEntryTimestamp: a.promise(t, rekor.RekorPayload{Body: logged.Body, IntegratedTime: *logged.IntegratedTime, LogID: *logged.LogID}),
	}
	return logged, *logged.Verification.InclusionProof.RootHash
}

// promise signs an entry as the log does when it takes it in.
func (a *authority) promise(t *testing.T, p rekor.RekorPayload) []byte {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := jsoncanonicalizer.Transform(raw)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(canonical)
	sig, err := ecdsa.SignASN1(rand.Reader, a.logKey, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// include proves that an entry is in the log, whose only one it is.
func (a *authority) include(t *testing.T, body []byte) *models.InclusionProof {
	t.Helper()
	leaf := sha256.Sum256(append([]byte{0}, body...))
	signer, err := signature.LoadECDSASignerVerifier(a.logKey, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	checkpoint, err := util.CreateAndSignCheckpoint(context.Background(), "log.invalid", 1, 1, leaf[:], signer)
	if err != nil {
		t.Fatal(err)
	}
	return &models.InclusionProof{
		TreeSize: conv.Pointer(int64(1)), LogIndex: conv.Pointer(int64(0)), Hashes: []string{},
		RootHash: conv.Pointer(hex.EncodeToString(leaf[:])), Checkpoint: conv.Pointer(string(checkpoint)),
	}
}

// stamp is the timestamp authority's word that it saw a signature at a time.
func (a *authority) stamp(t *testing.T, sig []byte, at time.Time) []byte {
	t.Helper()
	sum := sha256.Sum256(sig)
	return a.stampHash(t, sum[:], timestamp.Timestamp{}, at)
}

// stampHash is stamp for whoever sends a hash, with what else they ask for.
func (a *authority) stampHash(t *testing.T, hashed []byte, stamp timestamp.Timestamp, at time.Time) []byte {
	t.Helper()
	stamp.HashAlgorithm, stamp.HashedMessage, stamp.Time = crypto.SHA256, hashed, at
	stamp.Policy = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 2}
	b, err := stamp.CreateResponseWithOpts(a.stamper, a.stamperKey, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pemOf(t *testing.T, certs ...*x509.Certificate) []byte {
	t.Helper()
	b, err := cryptoutils.MarshalCertificatesToPEM(certs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (i identity) sign(t *testing.T, content []byte) []byte {
	t.Helper()
	sig, err := i.key.SignMessage(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// witness says who saw a signature, and when.
type witness struct {
	at      time.Time
	logged  bool
	stamped bool
}

// legacy is a keyless signature as cosign stores it under its tag.
func (a *authority) legacy(t *testing.T, i identity, content []byte, w witness) collect.Artifact {
	t.Helper()
	sig := i.sign(t, content)
	annotations := map[string]string{
		static.SignatureAnnotationKey:   base64.StdEncoding.EncodeToString(sig),
		static.CertificateAnnotationKey: string(pemOf(t, i.cert)),
		static.ChainAnnotationKey:       string(pemOf(t, a.intermediate, a.root)),
	}
	a.annotate(t, annotations, i, content, sig, sig, w)
	return collect.Artifact{Kind: collect.LegacySignature, Origin: "tag", Content: content, Annotations: annotations}
}

func (a *authority) annotate(t *testing.T, annotations map[string]string, i identity, content, sig, stamped []byte, w witness) {
	t.Helper()
	a.annotateBy(t, annotations, pemOf(t, i.cert), content, sig, stamped, w)
}

// annotateBy is annotate for a certificate or a key in PEM.
func (a *authority) annotateBy(t *testing.T, annotations map[string]string, by, content, sig, stamped []byte, w witness) {
	t.Helper()
	put := func(key string, value any) {
		b, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		annotations[key] = string(b)
	}
	if w.logged {
		put(static.BundleAnnotationKey, rekor.EntryToBundle(a.record(t, content, sig, by, w.at)))
	}
	if w.stamped {
		put(static.RFC3161TimestampAnnotationKey, rekor.TimestampToRFC3161Timestamp(a.stamp(t, stamped, w.at)))
	}
}

// envelope signs a statement with a certificate's key.
func (i identity) envelope(t *testing.T, content []byte) []byte {
	t.Helper()
	b, err := dsse.WrapSigner(i.key, ctypes.IntotoPayloadType).SignMessage(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// legacyAttestation is a keyless attestation as cosign stores it under its tag.
func (a *authority) legacyAttestation(t *testing.T, i identity, content []byte, w witness) collect.Artifact {
	t.Helper()
	envelope := i.envelope(t, content)
	annotations := map[string]string{static.CertificateAnnotationKey: string(pemOf(t, i.cert))}
	a.annotate(t, annotations, i, envelope, nil, envelope, w)
	return collect.Artifact{Kind: collect.LegacyAttestation, Origin: "tag", Content: envelope, Annotations: annotations}
}

// bundle is a sigstore bundle, v0.3, of a statement.
func (a *authority) bundle(t *testing.T, i identity, content []byte, w witness) collect.Artifact {
	t.Helper()
	envelope := i.envelope(t, content)
	var entry *models.LogEntryAnon
	if w.logged {
		entry = a.record(t, envelope, nil, pemOf(t, i.cert), w.at)
	}
	var stamp []byte
	if w.stamped {
		stamp = a.stamp(t, signatureOf(t, envelope), w.at)
	}
	b, err := rekor.MakeNewBundle(i.cert.PublicKey, entry, content, envelope, pemOf(t, i.cert), stamp)
	if err != nil {
		t.Fatal(err)
	}
	return collect.Artifact{Kind: collect.Bundle, Origin: "referrer", Content: b}
}

// keyed is a word about an image that a key gives, in one of forms, with an entry of
// the log and a timestamp where the witness has them.
func (a *authority) keyed(t *testing.T, raw *ecdsa.PrivateKey, form, digest string, w witness) collect.Artifact {
	t.Helper()
	i := identity{key: signerOf(t, raw), raw: raw}
	public, err := cryptoutils.MarshalPublicKeyToPEM(raw.Public())
	if err != nil {
		t.Fatal(err)
	}
	statement := statementOf(t, digest, cosignPredicate, map[string]any{}, nil)
	if strings.Contains(form, "attestation") {
		statement = statementOf(t, digest, provenance, map[string]any{"found": 0}, nil)
	}
	envelope := i.envelope(t, statement)
	switch form {
	case "legacy signature":
		content := simplePayload(t, digest, nil)
		sig := i.sign(t, content)
		annotations := map[string]string{static.SignatureAnnotationKey: base64.StdEncoding.EncodeToString(sig)}
		a.annotateBy(t, annotations, public, content, sig, sig, w)
		return collect.Artifact{Kind: collect.LegacySignature, Origin: "tag", Content: content, Annotations: annotations}
	case "legacy attestation":
		annotations := map[string]string{}
		a.annotateBy(t, annotations, public, envelope, nil, envelope, w)
		return collect.Artifact{Kind: collect.LegacyAttestation, Origin: "tag", Content: envelope, Annotations: annotations}
	}
	var entry *models.LogEntryAnon
	if w.logged {
		entry = a.record(t, envelope, nil, public, w.at)
	}
	var stamp []byte
	if w.stamped {
		stamp = a.stamp(t, signatureOf(t, envelope), w.at)
	}
	b, err := rekor.MakeNewBundle(raw.Public(), entry, statement, envelope, public, stamp)
	if err != nil {
		t.Fatal(err)
	}
	return collect.Artifact{Kind: collect.Bundle, Origin: "referrer", Content: b}
}

func signatureOf(t *testing.T, envelope []byte) []byte {
	t.Helper()
	var e struct{ Signatures []struct{ Sig []byte } }
	if err := json.Unmarshal(envelope, &e); err != nil || len(e.Signatures) != 1 {
		t.Fatalf("read envelope %s: %v", envelope, err)
	}
	return e.Signatures[0].Sig
}

func trustedMaterial(t *testing.T, trustedRoot string) root.TrustedMaterial {
	t.Helper()
	m, err := root.NewTrustedRootFromJSON([]byte(trustedRoot))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// messageBundle is a key's bundle of bytes, without any statement.
func messageBundle(t *testing.T, raw *ecdsa.PrivateKey, content []byte, digest v1.Hash) []byte {
	t.Helper()
	sig, err := base64.StdEncoding.DecodeString(base64Signature(t, raw, content))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := hex.DecodeString(digest.Hex)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "any"}},
		"messageSignature": map[string]any{
			"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sum}, "signature": sig,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
