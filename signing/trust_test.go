package signing_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing"
)

func TestSignersThatCannotBeUsed(t *testing.T) {
	a := newAuthority(t)
	_, good := newKey(t, "good")
	public := good.Spec.Key.PublicKey
	weak := generated(t, func() (any, error) { return rsa.GenerateKey(rand.Reader, 1024) }).(*rsa.PrivateKey)
	weakPublic, err := cryptoutils.MarshalPublicKeyToPEM(weak.Public())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.MarshalECPrivateKey(newECKey(t))
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: leaf}))
	key := func(text string) v1alpha1.BpfSigner { return keySigner("broken", []byte(text)) }
	keyless := func(change func(*v1alpha1.KeylessSigner)) v1alpha1.BpfSigner { return a.signer(t, "broken", change) }
	identified := func(m ...v1alpha1.IdentityMatch) v1alpha1.BpfSigner {
		return keyless(func(k *v1alpha1.KeylessSigner) { k.Identities = m })
	}
	rooted := func(text string) v1alpha1.BpfSigner {
		return keyless(func(k *v1alpha1.KeylessSigner) { k.TrustedRoot = text })
	}
	both := a.signer(t, "broken")
	both.Spec.Key = good.Spec.Key
	nameless := good
	nameless.Name = ""
	none := v1alpha1.BpfSigner{}
	none.Name = "broken"

	claimed := func(c v1alpha1.ClaimMatch) v1alpha1.BpfSigner {
		return keyless(func(k *v1alpha1.KeylessSigner) { k.Identities[0].Claims = []v1alpha1.ClaimMatch{c} })
	}
	demanding := func(change func(*v1alpha1.KeySigner)) v1alpha1.BpfSigner {
		s := key(public)
		change(s.Spec.Key)
		return s
	}
	placed := func(repository string) v1alpha1.BpfSigner {
		s := key(public)
		s.Spec.Repository = repository
		return s
	}
	ending := key(public)
	ending.Spec.NotBefore, ending.Spec.NotAfter = &metav1.Time{Time: a.born}, &metav1.Time{Time: a.born}

	for sentence, c := range map[string]struct {
		signer v1alpha1.BpfSigner
		want   string
	}{
		"neither key nor keyless":           {none, "neither spec.key nor spec.keyless is given"},
		"both key and keyless":              {both, "both given"},
		"no name":                           {nameless, "it has no name"},
		"an empty key":                      {key(""), "is not PEM"},
		"a key that is text":                {key("cosign.pub"), "is not PEM"},
		"a key that was cut off":            {key(public[:len(public)/2]), "is not PEM"},
		"a key with letters missing":        {key(strings.Replace(public, "MFkw", "MFk", 1)), "spec.key.publicKey"},
		"a private key":                     {key(private), "holds a private key"},
		"two keys":                          {key(public + public), "more than one key"},
		"a certificate":                     {key(string(pemOf(t, a.root))), "does not parse"},
		"a key that can be factored":        {key(string(weakPublic)), "too weak"},
		"no trusted root":                   {rooted("  "), "spec.keyless.trustedRoot is empty"},
		"a trusted root that is text":       {rooted("fulcio"), "does not parse"},
		"a trusted root that is null":       {rooted("null"), "does not parse"},
		"a trusted root of another version": {rooted(strings.Replace(a.trustedRoot(t), "version=0.1", "version=7", 1)), "does not parse"},
		"a trusted root without anything":   {rooted(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), "no certificate authority"},
		"a trusted root with a broken key":  {rooted(strings.ReplaceAll(a.trustedRoot(t), `"rawBytes":"MFkw`, `"rawBytes":"AAAA`)), "does not parse"},
		"a trusted root without a log":      {rooted(without(t, []byte(a.trustedRoot(t)), "tlogs")), "no transparency log"},
		"a trusted root without a CT log":   {rooted(without(t, []byte(a.trustedRoot(t)), "ctlogs")), "no certificate transparency log"},
		"no identities":                     {identified(), "identities is empty"},
		"an identity without an issuer":     {identified(v1alpha1.IdentityMatch{Subject: subject}), "identities[0]: issuer: it is not limited"},
		"an identity without a subject":     {identified(v1alpha1.IdentityMatch{Issuer: issuer}), "identities[0]: subject: it is not limited"},
		"an empty second identity": {
			identified(v1alpha1.IdentityMatch{Issuer: issuer, Subject: subject}, v1alpha1.IdentityMatch{}), "identities[1]: issuer",
		},
		"an issuer given in two ways":           {identified(v1alpha1.IdentityMatch{Issuer: issuer, IssuerRegExp: ".*", Subject: subject}), "are both given"},
		"an expression that does not compile":   {identified(v1alpha1.IdentityMatch{Issuer: issuer, SubjectRegExp: "("}), "does not compile"},
		"a claim that there is none of":         {claimed(v1alpha1.ClaimMatch{Name: "builder", Value: "x"}), `claim "builder"`},
		"a claim that is compared with nothing": {claimed(v1alpha1.ClaimMatch{Name: "buildTrigger"}), "claim buildTrigger: it is not limited"},
		"a claim that breaks out":               {claimed(v1alpha1.ClaimMatch{Name: "buildTrigger", ValueRegExp: `a)|(?:.*`}), "does not compile"},
		"a log without a root": {
			demanding(func(k *v1alpha1.KeySigner) { k.TransparencyLog = v1alpha1.DemandRequired }), "spec.key.trustedRoot is empty",
		},
		"a timestamp without a root": {demanding(func(k *v1alpha1.KeySigner) { k.Timestamp = v1alpha1.DemandRequired }), "spec.key.trustedRoot is empty"},
		"a log that the root does not name": {demanding(func(k *v1alpha1.KeySigner) {
			k.TrustedRoot, k.TransparencyLog = without(t, []byte(a.trustedRoot(t)), "tlogs"), v1alpha1.DemandRequired
		}), "names no transparency log"},
		"a timestamp authority that the root does not name": {demanding(func(k *v1alpha1.KeySigner) {
			k.TrustedRoot, k.Timestamp = without(t, []byte(a.trustedRoot(t)), "timestampAuthorities"), v1alpha1.DemandRequired
		}), "names no timestamp authority"},
		"a root that sees nothing": {demanding(func(k *v1alpha1.KeySigner) {
			k.TrustedRoot = without(t, []byte(without(t, []byte(a.trustedRoot(t)), "timestampAuthorities")), "tlogs")
		}), "neither a transparency log nor a timestamp authority"},
		"a key's root that is text":        {demanding(func(k *v1alpha1.KeySigner) { k.TrustedRoot = "rekor" }), "spec.key.trustedRoot does not parse"},
		"a repository with a tag":          {placed("registry.example.com/signatures:v1"), "spec.repository"},
		"a repository without a registry":  {placed("team/signatures"), "spec.repository"},
		"a folder for a repository":        {placed("oci:/srv/signatures"), "spec.repository"},
		"times that end before they begin": {ending, "spec.notBefore is not earlier than spec.notAfter"},
		"an expression that breaks out":    {identified(v1alpha1.IdentityMatch{Issuer: issuer, SubjectRegExp: `a)|(?:.*`}), "does not compile"},
	} {
		t.Run(sentence, func(t *testing.T) {
			trust, err := signing.NewTrust([]v1alpha1.BpfSigner{c.signer, good})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"`+c.signer.Name+`"`) {
				t.Errorf("got error %v, want %q and the signer's name", err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), "PRIVATE KEY-----") || !strings.Contains(err.Error(), ": ")) {
				t.Errorf("got error %v", err)
			}
			if got := trust.Names(); !slices.Equal(got, []string{"good"}) {
				t.Errorf("the others are %v, want good", got)
			}
		})
	}
}

func TestEveryBrokenSignerIsNamed(t *testing.T) {
	_, good := newKey(t, "good")
	_, err := signing.NewTrust([]v1alpha1.BpfSigner{keySigner("one", nil), good, keySigner("two", nil)})
	if err == nil || !strings.Contains(err.Error(), `"one"`) || !strings.Contains(err.Error(), `"two"`) {
		t.Errorf("got error %v", err)
	}
}

func TestTwoSignersOfOneName(t *testing.T) {
	_, one := newKey(t, "alice")
	_, two := newKey(t, "alice")
	trust, err := signing.NewTrust([]v1alpha1.BpfSigner{one, two})
	if err == nil || !strings.Contains(err.Error(), "2 signers have this name") {
		t.Errorf("got error %v", err)
	}
	if len(trust.Names()) != 0 {
		t.Errorf("one of them is trusted: %v", trust.Names())
	}
}

func TestSignersOfOneKeyAreCautionedOf(t *testing.T) {
	_, one := newKey(t, "one")
	_, other := newKey(t, "other")
	named := func(name string, change func(*v1alpha1.BpfSignerSpec)) v1alpha1.BpfSigner {
		s := one.DeepCopy()
		s.Name = name
		change(&s.Spec)
		return *s
	}
	plain := func(*v1alpha1.BpfSignerSpec) {}
	annotated := func(value string) func(*v1alpha1.BpfSignerSpec) {
		return func(s *v1alpha1.BpfSignerSpec) { s.Annotations = map[string]string{"env": value} }
	}
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	later := metav1.NewTime(at.Add(time.Hour))
	a := newAuthority(t)
	for sentence, c := range map[string]struct {
		signers []v1alpha1.BpfSigner
		want    string
	}{
		"each has its own":       {[]v1alpha1.BpfSigner{one, other}, ""},
		"keyless ones have none": {[]v1alpha1.BpfSigner{a.signer(t, "one"), a.signer(t, "two")}, ""},
		"another has it": {
			[]v1alpha1.BpfSigner{one, named("twin", plain)}, "signer one has the same key as twin: one signature counts as that of each, ",
		},
		"many have it": {
			[]v1alpha1.BpfSigner{one, named("a", plain), named("b", plain), named("c", plain), named("d", plain)},
			"signer one has the same key as a, b, c and 1 more: one ",
		},
		"an annotation tells them apart": {[]v1alpha1.BpfSigner{named("one", annotated("prod")), named("twin", annotated("dev"))}, ""},
		"one of them asks for none": {
			[]v1alpha1.BpfSigner{named("one", annotated("prod")), named("twin", plain)}, "signer one has the same key as twin: one ",
		},
		"their times never meet": {
			[]v1alpha1.BpfSigner{
				named("one", func(s *v1alpha1.BpfSignerSpec) { s.NotAfter = &at }), named("twin", func(s *v1alpha1.BpfSignerSpec) { s.NotBefore = &later }),
			}, "",
		},
		"the other is revoked": {
			[]v1alpha1.BpfSigner{one, named("twin", func(s *v1alpha1.BpfSignerSpec) { s.Revoked = true })},
			"signer one has the same key as twin, where it is revoked: what is revoked there counts for no signer",
		},
		"it is revoked, and the other not": {[]v1alpha1.BpfSigner{named("one", func(s *v1alpha1.BpfSignerSpec) { s.Revoked = true }), named("twin", plain)}, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			got := strings.Join(trustOf(t, c.signers...).Cautions("one"), "\n")
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	_, alice := newKey(t, "alice")
	_, bob := newKey(t, "bob")
	revision := func(signers ...v1alpha1.BpfSigner) string {
		trust, _ := signing.NewTrust(signers)
		return trust.Revision()
	}
	base := revision(alice, bob)
	labelled := alice
	labelled.Labels = map[string]string{"team": "net"}
	if got := revision(bob, labelled); got != base {
		t.Error("order or labels change the revision")
	}
	revoked, annotated, renamed := alice, alice, alice
	revoked.Spec.Revoked = true
	annotated.Spec.Annotations = map[string]string{"env": "prod"}
	renamed.Name = "alicia"
	seen := map[string]string{base: "the base"}
	for change, got := range map[string]string{
		"revoking":           revision(revoked, bob),
		"asking annotations": revision(annotated, bob),
		"renaming":           revision(renamed, bob),
		"dropping one":       revision(bob),
		"a broken one more":  revision(alice, bob, keySigner("broken", nil)),
		"none":               revision(),
	} {
		if !strings.HasPrefix(got, "sha256:") || seen[got] != "" {
			t.Errorf("%s: revision %q, the same as %s", change, got, seen[got])
		}
		seen[got] = change
	}
	trust, err := signing.NewTrust([]v1alpha1.BpfSigner{revoked, bob})
	if err != nil || !slices.Equal(trust.Names(), []string{"bob"}) || !cmp.Equal(trust.Revoked(), signing.Revocations{"alice": {}}) {
		t.Errorf("names %v, revoked %v: %v", trust.Names(), trust.Revoked(), err)
	}
}
