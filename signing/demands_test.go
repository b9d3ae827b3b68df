package signing_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

// github are the claims of a certificate of GitHub Actions, by the last number of their
// extension.
var github = map[int]string{
	9: "https://github.com/acme/ci/.github/workflows/build.yml@refs/heads/main", 10: "aaaa", 11: "github-hosted",
	12: "https://github.com/acme/counter", 13: "bbbb", 14: "refs/tags/v1.2.3", 15: "4711", 16: "https://github.com/acme", 17: "42",
	18: "https://github.com/acme/counter/.github/workflows/release.yml@refs/tags/v1.2.3", 19: "cccc", 20: "push",
	21: "https://github.com/acme/counter/actions/runs/1/attempts/1", 22: "public",
}

// githubClaims is what policies see of them.
var githubClaims = signing.Claims{
	BuildSignerURI: github[9], BuildSignerDigest: github[10], RunnerEnvironment: github[11],
	SourceRepositoryURI: github[12], SourceRepositoryDigest: github[13], SourceRepositoryRef: github[14], SourceRepositoryIdentifier: github[15],
	SourceRepositoryOwnerURI: github[16], SourceRepositoryOwnerIdentifier: github[17], BuildConfigURI: github[18], BuildConfigDigest: github[19],
	BuildTrigger: github[20], RunInvocationURI: github[21], SourceRepositoryVisibilityAtSigning: github[22],
}

// one is what a single artifact amounts to for one signer.
func one(t *testing.T, signer v1alpha1.BpfSigner, a collect.Artifact) signing.Evidence {
	t.Helper()
	return verify(t, trustOf(t, signer), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{a}})
}

// TestAttestationsThatCount is an image that has an attestation and no signature, as
// GitHub's provenance action leaves it.
func TestAttestationsThatCount(t *testing.T) {
	a := newAuthority(t)
	a.claims = github
	now := time.Now().Truncate(time.Second)
	w := witness{at: now, logged: true}
	i := a.certify(t, issuer, subject, now.Add(-time.Minute), false)
	for form, make := range forms {
		if !strings.Contains(form, "attestation") {
			continue
		}
		artifact := make(t, a, i, thisImage, w)
		for _, counts := range []bool{false, true} {
			signer := a.signer(t, "ci")
			signer.Spec.CountAttestations = counts
			e := one(t, signer, artifact)
			if len(e.Attestations) != 1 || !slices.Equal(e.Attesters(), []string{"ci"}) {
				t.Fatalf("%s: %+v", form, e)
			}
			got := e.Attestations[0]
			if got.Kind != signing.KindKeyless || got.Issuer != issuer || got.Subject != subject || !got.Time.Equal(now) || got.Claims != githubClaims {
				t.Errorf("%s: the attestation is %+v", form, got)
			}
			want := []signing.Signature{}
			if counts {
				want = append(want, signing.Signature{
					Signer: "ci", Kind: signing.KindKeyless, Issuer: issuer, Subject: subject, Claims: githubClaims, Time: now.UTC(),
					PredicateType: "https://example.com/scan/v1",
				})
			}
			if diff := cmp.Diff(want, e.Signatures); diff != "" {
				t.Errorf("%s, countAttestations %v (-want +got):\n%s", form, counts, diff)
			}
			signer.Spec.Revoked = true
			if e := one(t, signer, artifact); len(e.Signatures)+len(e.Attestations) != 0 || !slices.Equal(e.Revoked, []string{"ci"}) {
				t.Errorf("%s of a revoked signer: %+v", form, e)
			}
		}
	}
}

func TestClaims(t *testing.T) {
	a := newAuthority(t)
	a.claims = github
	now := time.Now().Truncate(time.Second)
	i := a.certify(t, issuer, subject, now.Add(-time.Minute), false)
	exact := func(name, value string) v1alpha1.ClaimMatch { return v1alpha1.ClaimMatch{Name: name, Value: value} }
	like := func(name, expression string) v1alpha1.ClaimMatch {
		return v1alpha1.ClaimMatch{Name: name, ValueRegExp: expression}
	}
	for sentence, c := range map[string]struct {
		claims  []v1alpha1.ClaimMatch
		or      []v1alpha1.ClaimMatch
		because string
	}{
		"the repository":                   {claims: []v1alpha1.ClaimMatch{exact("sourceRepositoryURI", "https://github.com/acme/counter")}},
		"the repository, by an expression": {claims: []v1alpha1.ClaimMatch{like("sourceRepositoryURI", "https://github.com/acme/.*")}},
		"all of three": {claims: []v1alpha1.ClaimMatch{
			exact("buildTrigger", "push"), exact("runnerEnvironment", "github-hosted"), like("sourceRepositoryRef", "refs/tags/v.+"),
		}},
		"another repository": {
			claims:  []v1alpha1.ClaimMatch{exact("sourceRepositoryURI", "https://github.com/acme/other")},
			because: `claims sourceRepositoryURI "https://github.com/acme/counter", and the signer asks for "https://github.com/acme/other"`,
		},
		"one of two": {
			claims: []v1alpha1.ClaimMatch{exact("buildTrigger", "push"), exact("runnerEnvironment", "self-hosted")}, because: "claims runnerEnvironment",
		},
		"an expression for a part of it": {claims: []v1alpha1.ClaimMatch{like("sourceRepositoryRef", "refs/tags")}, because: "what matches refs/tags"},
		"an expression with an alternative": {
			claims: []v1alpha1.ClaimMatch{like("sourceRepositoryRef", "refs/tags|v1")}, because: "claims sourceRepositoryRef",
		},
		"a claim that it does not make": {claims: []v1alpha1.ClaimMatch{like("githubWorkflowName", ".*")}, because: "makes no claim githubWorkflowName"},
		"other claims, and the second identity": {
			claims: []v1alpha1.ClaimMatch{exact("buildTrigger", "schedule")}, or: []v1alpha1.ClaimMatch{exact("buildTrigger", "push")},
		},
		"other claims of both identities": {
			claims: []v1alpha1.ClaimMatch{exact("buildTrigger", "schedule")}, or: []v1alpha1.ClaimMatch{exact("buildTrigger", "fork")}, because: "claims buildTrigger",
		},
		"the digest of the commit and nothing else": {claims: []v1alpha1.ClaimMatch{exact("sourceRepositoryDigest", "bbbb")}},
	} {
		for form, make := range forms {
			t.Run(form+": "+sentence, func(t *testing.T) {
				signer := a.signer(t, "ci", func(k *v1alpha1.KeylessSigner) {
					k.Identities[0].Claims = c.claims
					if c.or != nil {
						k.Identities = append(k.Identities, k.Identities[0])
						k.Identities[1].Claims = c.or
					}
				})
				e := one(t, signer, make(t, a, i, thisImage, witness{at: now, logged: true}))
				if c.because != "" {
					mustReject(t, e, c.because)
				} else if len(e.Signatures)+len(e.Attestations) != 1 {
					t.Errorf("it does not count: %+v", e)
				}
			})
		}
	}
}

// TestKeyDemands is what a key asks for: an entry of a log, a timestamp, and a time.
func TestKeyDemands(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	raw := newECKey(t)
	_, plain := parsedKey(t, "alice", raw)
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	moment := func(from time.Duration) *metav1.Time { return &metav1.Time{Time: at.Add(from)} }
	key := func(change func(*v1alpha1.BpfSignerSpec)) v1alpha1.BpfSigner {
		s := *plain.DeepCopy()
		s.Spec.Key.TrustedRoot = a.trustedRoot(t)
		change(&s.Spec)
		return s
	}
	logged, stamped, both := witness{at: at, logged: true}, witness{at: at, stamped: true}, witness{at: at, logged: true, stamped: true}
	needLog := func(s *v1alpha1.BpfSignerSpec) { s.Key.TransparencyLog = v1alpha1.DemandRequired }
	needStamp := func(s *v1alpha1.BpfSignerSpec) { s.Key.Timestamp = v1alpha1.DemandRequired }
	needBoth := func(s *v1alpha1.BpfSignerSpec) { needLog(s); needStamp(s) }
	nothing := func(*v1alpha1.BpfSignerSpec) {}
	bounded := func(before, after *metav1.Time) func(*v1alpha1.BpfSignerSpec) {
		return func(s *v1alpha1.BpfSignerSpec) { s.NotBefore, s.NotAfter = before, after }
	}
	for sentence, c := range map[string]struct {
		signer  v1alpha1.BpfSigner
		w       witness
		by      *authority
		timed   bool
		because string
	}{
		"no root, and a log and a timestamp":     {signer: plain, w: both},
		"a root, and neither":                    {signer: key(nothing)},
		"a root, and a log":                      {signer: key(nothing), w: logged, timed: true},
		"a root, and a timestamp":                {signer: key(nothing), w: stamped, timed: true},
		"a root, and a log it does not know":     {signer: key(nothing), w: logged, by: stranger},
		"a log is asked for and there":           {signer: key(needLog), w: logged, timed: true},
		"a log is asked for and not there":       {signer: key(needLog), w: stamped, because: "transparencyLog: Required"},
		"a log is asked for, and nothing there":  {signer: key(needLog), because: "transparencyLog: Required"},
		"a log is asked for, and another there":  {signer: key(needLog), w: logged, by: stranger, because: "transparencyLog: Required"},
		"a timestamp is asked for and there":     {signer: key(needStamp), w: stamped, timed: true},
		"a timestamp is asked for and not there": {signer: key(needStamp), w: logged, because: "timestamp: Required"},
		"a timestamp of another authority":       {signer: key(needStamp), w: stamped, by: stranger, because: "timestamp: Required"},
		"both are asked for and there":           {signer: key(needBoth), w: both, timed: true},
		"both are asked for and one is there":    {signer: key(needBoth), w: logged, because: "timestamp: Required"},
		"made from notBefore on":                 {signer: key(bounded(moment(0), nil)), w: logged, timed: true},
		"made before notBefore":                  {signer: key(bounded(moment(time.Second), nil)), w: logged, because: "counts from notBefore"},
		"made before notAfter":                   {signer: key(bounded(nil, moment(time.Second))), w: stamped, timed: true},
		"made at notAfter":                       {signer: key(bounded(nil, moment(0))), w: stamped, because: "counts no more from notAfter"},
		"made between both":                      {signer: key(bounded(moment(-time.Second), moment(time.Second))), w: both, timed: true},
		"made at a time that nobody knows":       {signer: key(bounded(moment(-time.Second), nil)), because: "it has no trusted time"},
	} {
		for form := range forms {
			t.Run(form+": "+sentence, func(t *testing.T) {
				by := a
				if c.by != nil {
					by = c.by
				}
				e := one(t, c.signer, by.keyed(t, raw, form, thisImage, c.w))
				if c.because != "" {
					mustReject(t, e, c.because)
					return
				}
				var times []time.Time
				for _, s := range e.Signatures {
					times = append(times, s.Time)
				}
				for _, s := range e.Attestations {
					times = append(times, s.Time)
				}
				if len(times) != 1 || times[0].IsZero() == c.timed || c.timed && !times[0].Equal(at) {
					t.Errorf("it counts at %v: %+v", times, e)
				}
			})
		}
	}
}

// TestAKeysLogEntryThatIsFalse: with a trusted root, an entry of its log must be true.
func TestAKeysLogEntryThatIsFalse(t *testing.T) {
	a := newAuthority(t)
	raw := newECKey(t)
	_, signer := parsedKey(t, "alice", raw)
	now := time.Now().Truncate(time.Second)
	w := witness{at: now, logged: true}
	for form := range forms {
		other := entryOf(t, a.keyed(t, newECKey(t), form, thisImage, w))
		artifact := withEntry(t, a.keyed(t, raw, form, thisImage, w), other)
		signer.Spec.Key.TrustedRoot = ""
		if e := one(t, signer, artifact); len(e.Signatures)+len(e.Attestations) != 1 {
			t.Errorf("%s: without a root, it does not count: %+v", form, e)
		}
		signer.Spec.Key.TrustedRoot = a.trustedRoot(t)
		mustReject(t, one(t, signer, artifact), "is not true of it")
	}
}

// TestRevokedAfter is a revocation from a time on: it leaves what was seen before.
func TestRevokedAfter(t *testing.T) {
	a := newAuthority(t)
	raw := newECKey(t)
	_, alice := parsedKey(t, "alice", raw)
	alice.Spec.Key.TrustedRoot = a.trustedRoot(t)
	twin := *alice.DeepCopy()
	twin.Name, twin.Spec.Key.TrustedRoot = "twin", ""
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	revoked := func(from time.Duration) v1alpha1.BpfSigner {
		s := *alice.DeepCopy()
		s.Spec.RevokedAfter = &metav1.Time{Time: at.Add(from)}
		return s
	}
	altogether := revoked(time.Hour)
	altogether.Spec.Revoked = true
	rootless := revoked(time.Hour)
	rootless.Spec.Key.TrustedRoot = ""
	late := revoked(-time.Second)
	late.Spec.NotAfter = &metav1.Time{Time: at.Add(-time.Hour)}
	for sentence, c := range map[string]struct {
		signer v1alpha1.BpfSigner
		w      witness
		counts bool
	}{
		"logged before":                              {revoked(time.Second), witness{at: at, logged: true}, true},
		"stamped before":                             {revoked(time.Second), witness{at: at, stamped: true}, true},
		"logged at that time":                        {revoked(0), witness{at: at, logged: true}, false},
		"stamped after":                              {revoked(-time.Second), witness{at: at, stamped: true}, false},
		"seen by nobody":                             {revoked(time.Hour), witness{}, false},
		"logged before, and no root knows of it":     {rootless, witness{at: at, logged: true}, false},
		"logged before, and revoked altogether":      {altogether, witness{at: at, logged: true}, false},
		"logged after, and out of notAfter's bounds": {late, witness{at: at, logged: true}, false},
	} {
		for form := range forms {
			t.Run(form+": "+sentence, func(t *testing.T) {
				artifact := a.keyed(t, raw, form, thisImage, c.w)
				e := verify(t, trustOf(t, c.signer, twin), collect.Collected{Digest: thisImage, Artifacts: []collect.Artifact{artifact}})
				if c.counts {
					if len(e.Signatures)+len(e.Attestations) != 2 || len(e.Revoked) != 0 {
						t.Errorf("it does not count for both: %+v", e)
					}
					return
				}
				mustReject(t, e, "revoked")
				if !slices.Equal(e.Revoked, []string{"alice"}) {
					t.Errorf("revoked signers: %v", e.Revoked)
				}
			})
		}
	}
}

// TestSignedAt is the time that is sealed: the earliest of each signer.
func TestSignedAt(t *testing.T) {
	at := time.Unix(1000, 0).UTC()
	e := signing.Evidence{Signatures: []signing.Signature{
		{Signer: "alice", Time: at.Add(time.Hour)}, {Signer: "alice"}, {Signer: "alice", Time: at}, {Signer: "bob"},
	}}
	if diff := cmp.Diff(map[string]time.Time{"alice": at, "bob": {}}, e.SignedAt()); diff != "" {
		t.Error(diff)
	}
}

// TestClaimsHaveTheirNamesEverywhere compares what signers may ask for with what
// certificates say and policies see.
func TestClaimsHaveTheirNamesEverywhere(t *testing.T) {
	var want []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[signing.Claims]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		want = append(want, name)
	}
	slices.Sort(want)
	for file, pattern := range map[string]string{
		"../charts/skep/files/crds/skep.dev_bpfsigners.yaml": `(?s)enum:\n((?: +- (?:build|source|github|run)\w+\n)+)`,
		"../schemas/module/signer.cue":                       `(?s)name!: (.*?)\n\t//`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s lists no claims", file)
		}
		got := regexp.MustCompile(`[a-z]\w+`).FindAllString(string(m[1]), -1)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-claims +there):\n%s", file, diff)
		}
	}
}
