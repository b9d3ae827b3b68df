package gate_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
)

const scanned = "https://example.com/scanned/v1"

// attest writes an attestation under cosign's tag, as cosign attest does.
func (w *world) attest(ref, signer string) {
	w.t.Helper()
	r := w.resolve(ref)
	digest, err := v1.NewHash(r.Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	const payloadType = "application/vnd.in-toto+json"
	statement := marshal(w.t, map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": scanned, "predicate": map[string]any{"clean": true},
		"subject": []any{map[string]any{"digest": map[string]string{digest.Algorithm: digest.Hex}}},
	})
	sum := sha256.Sum256(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(statement), statement))
	sig, err := ecdsa.SignASN1(rand.Reader, w.raw[signer], sum[:])
	if err != nil {
		w.t.Fatal(err)
	}
	envelope := marshal(w.t, map[string]any{
		"payloadType": payloadType, "payload": base64.StdEncoding.EncodeToString(statement),
		"signatures": []any{map[string]string{"sig": base64.StdEncoding.EncodeToString(sig)}},
	})
	config := []byte("{}")
	manifest := marshal(w.t, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: describe(config, types.OCIConfigJSON),
		Layers: []v1.Descriptor{describe(envelope, "application/vnd.dsse.envelope.v1+json")},
	})
	to, err := w.client.Attachments(r)
	if err == nil {
		err = errors.Join(
			to.PutBlob(w.t.Context(), describe(config, types.OCIConfigJSON), config),
			to.PutBlob(w.t.Context(), describe(envelope, ""), envelope),
			to.PutManifest(w.t.Context(), describe(manifest, types.OCIManifestSchema1), manifest, collect.AttestationTag(digest)))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func describe(content []byte, kind types.MediaType) v1.Descriptor {
	sum := sha256.Sum256(content)
	return v1.Descriptor{MediaType: kind, Size: int64(len(content)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

// rego is a policy of its own, cluster-wide.
func rego(body string) policies.Policy {
	return policies.Policy{Name: "p", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\n" + body}}
}

// wantsSigner denies what one signer did not sign.
func wantsSigner(name string) policies.Policy {
	return rego(fmt.Sprintf("deny contains \"not signed\" if not %q in {s.signer | some s in input.signatures}", name))
}

// wantsSomebody denies what nobody signed, refusesScanned what was scanned.
var (
	wantsSomebody  = rego("deny contains \"unsigned\" if count(input.signatures) == 0")
	refusesScanned = rego(fmt.Sprintf("deny contains \"scanned\" if %q in {a.predicateType | some a in input.attestations}", scanned))
)

// taken evaluates, and counts the requests it took.
func (w *world) taken(t *testing.T, j *gate.Evaluator, req gate.Request) (int, gate.Verdict) {
	t.Helper()
	before := w.requests.Load()
	v, err := j.Evaluate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	w.arrived()
	return int(w.requests.Load() - before), v
}

func TestWhatDidNotChangeIsStoredOnceAnHour(t *testing.T) {
	w := newWorld(t)
	j, req := w.evaluator(), gate.Request{Application: app(w.push("xdp_count", "v1"), "xdp")}
	_, v := w.taken(t, j, req)
	req.Digest = v.Image().Digest
	// stored reports whether a look after so long is written down.
	stored := func(after time.Duration) bool {
		t.Helper()
		clear(w.memory)
		w.now = w.now.Add(after)
		if n, _ := w.taken(t, j, req); n == 0 {
			t.Fatal("the registry was not asked")
		}
		return len(w.memory) > 0
	}
	for i := range 10 {
		if stored(31 * time.Second) {
			t.Errorf("look %d found nothing new, and was stored", i)
		}
	}
	if !stored(time.Hour) {
		t.Error("what was seen an hour after was not stored")
	}
	w.sign(req.Application.Body().Bytecode.Image, "team-a")
	if !stored(31 * time.Second) {
		t.Error("a signature was not stored")
	}
}

// TestWhatIsPassingIsNotStored has the next one store it, who asks nobody for it.
func TestWhatIsPassingIsNotStored(t *testing.T) {
	w := newWorld(t)
	j, req := w.evaluator(), gate.Request{Application: app(w.signed("xdp_count"), "count_packets", onEth0()), Passing: true}
	stored := func(want int) {
		t.Helper()
		if n, v := w.taken(t, j, req); len(w.memory) != want || !v.Allowed() || (n > 0) != (req.Digest == "") {
			t.Errorf("after %d requests %d entries are stored, want %d; allowed %v", n, len(w.memory), want, v.Allowed())
		}
	}
	stored(0)
	_, v := w.taken(t, j, req)
	req.Digest = v.Image().Digest
	stored(0)
	req.Passing = false
	stored(1)
	// What is known to be stored is not stored again.
	clear(w.memory)
	stored(0)
	w.now = w.now.Add(time.Hour)
	req.Passing, req.Digest = true, ""
	stored(0)
	req.Passing, req.Digest = false, v.Image().Digest
	stored(1)
}

// TestWhatIsPassingAndKnownByDigestAsksNobody: the registry may be what hangs.
func TestWhatIsPassingAndKnownByDigestAsksNobody(t *testing.T) {
	w := newWorld(t)
	j, req := w.evaluator(), gate.Request{Application: app(w.push("xdp_count", "v1"), "count_packets", onEth0())}
	_, v := w.taken(t, j, req)
	req.Digest, req.Passing = v.Image().Digest, true
	w.now = w.now.Add(23 * time.Hour)
	if n, v := w.taken(t, j, req); n != 0 || v.Allowed() {
		t.Errorf("%d requests, allowed %v; want what was known 23 hours ago", n, v.Allowed())
	}
	w.now = w.now.Add(time.Hour)
	if n, _ := w.taken(t, j, req); n == 0 {
		t.Error("what was known a day ago still counts")
	}
}

// TestRequestsOfOneRun counts what whole runs of the gate ask of a registry: the
// ping, the tag, three for the image, and the evidence.
func TestRequestsOfOneRun(t *testing.T) {
	const image = 5
	for name, c := range map[string]struct {
		legacy, bundle string
		// again is what the look half a minute later takes: nothing where
		// everything was collected at first, all where none counted.
		again int
	}{
		"no signature":                    {"", "", 3},
		"a legacy signature":              {"team-a", "", 0},
		"a bundle":                        {"", "team-a", 2},
		"a bundle and a legacy signature": {"team-b", "team-a", 2},
	} {
		for _, referrers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, referrers API %v", name, referrers), func(t *testing.T) {
				w := newWorldOf(t, referrers)
				ref := w.push("xdp_count", "v1")
				first, again := image+3, c.again
				if !referrers {
					first++
				}
				switch {
				case c.bundle != "":
					w.bundle(ref, c.bundle)
				case c.legacy == "" && !referrers:
					again++
				}
				if c.legacy != "" {
					w.sign(ref, c.legacy)
				}
				w.renew()
				j, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
				n, v := w.taken(t, j, req)
				if n != first {
					t.Errorf("the first run took %d requests, want %d", n, first)
				}
				req.Digest = v.Image().Digest
				for _, later := range []struct {
					wait time.Duration
					want int
				}{{29 * time.Second, 0}, {2 * time.Second, again}, {0, 0}} {
					w.now = w.now.Add(later.wait)
					if n, v = w.taken(t, j, req); n != later.want {
						t.Errorf("after another %s it took %d requests, want %d", later.wait, n, later.want)
					}
				}
				if evidence := v.Evidence(); evidence.Partial {
					t.Error("after half a minute the evidence is still a part")
				}
			})
		}
	}
}

// TestAPartOfTheEvidenceRefusesNothing gives every image a bundle of team-a,
// which ends the first look, and asks for what only the second one finds.
func TestAPartOfTheEvidenceRefusesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		beside  func(w *world, ref string)
		policy  policies.Policy
		revoked string
		signers []string
		allowed bool
		partial bool
	}{
		"the bundle is enough": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  wantsSomebody,
			signers: []string{"team-a"}, allowed: true, partial: true,
		},
		"a policy reads who signed, and could refuse for it": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  wantsSigner("team-a"),
			signers: []string{"team-a", "team-b"}, allowed: true,
		},
		"a policy refuses for a signer, who signed by the tag": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  rego("deny contains \"team-b\" if { some s in input.signatures; s.signer == \"team-b\" }"),
			signers: []string{"team-a", "team-b"},
		},
		"a policy refuses more than one signature": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  rego("deny contains \"many\" if count(input.signatures) > 1"),
			signers: []string{"team-a", "team-b"},
		},
		"a policy refuses for an attestation, which stands under the tag": {
			beside:  func(w *world, ref string) { w.attest(ref, "team-b") },
			policy:  refusesScanned,
			signers: []string{"team-a"},
		},
		"a second signer is asked for, and signed by the tag": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  wantsSigner("team-b"),
			signers: []string{"team-a", "team-b"}, allowed: true,
		},
		"a second signer is asked for, and did not sign": {
			beside:  func(*world, string) {},
			policy:  wantsSigner("team-b"),
			signers: []string{"team-a"},
		},
		"an attestation is asked for, and stands under the tag": {
			beside:  func(w *world, ref string) { w.attest(ref, "team-b") },
			policy:  rego(fmt.Sprintf("deny contains \"not scanned\" if not %q in {a.predicateType | some a in input.attestations}", scanned)),
			signers: []string{"team-a"}, allowed: true,
		},
		"the bundle's signer is revoked, and another signed by the tag": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  wantsSomebody,
			revoked: "team-a",
			signers: []string{"team-b"}, allowed: true,
		},
		"the bundle's signer is revoked, and nobody's signature is asked for": {
			beside:  func(w *world, ref string) { w.sign(ref, "team-b") },
			policy:  rego("deny contains \"never\" if input.application.kind == \"None\""),
			revoked: "team-a",
			signers: []string{"team-b"}, allowed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.bundle(ref, "team-a")
			c.beside(w, ref)
			j := w.evaluator()
			j.SetPolicies(w.policy(c.policy))
			j.SetTrust(w.revoke(c.revoked))
			v := mustEvaluate(t, j, app(ref, "count_packets", onEth0()))
			evidence := v.Evidence()
			if diff := cmp.Diff(c.signers, evidence.Signers()); diff != "" || v.Allowed() != c.allowed || evidence.Partial != c.partial {
				t.Errorf("allowed %v, partial %v, denied for %v; signers (-want +got):\n%s", v.Allowed(), evidence.Partial, rules(v), diff)
			}
		})
	}
}

// revoke is the world's signers, one of them revoked; none where the name is
// empty.
func (w *world) revoke(name string) *signing.Trust {
	w.t.Helper()
	signers := slices.Clone(w.signers)
	for i := range signers {
		signers[i].Spec.Revoked = signers[i].Name == name
	}
	return w.trust(signers...)
}

// TestARevokedBundleHidesNobody revokes the signer whose bundle ended the first
// look.
func TestARevokedBundleHidesNobody(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	w.sign(ref, "team-b")
	j, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
	_, first := w.taken(t, j, req)
	req.Digest = first.Image().Digest
	j.SetTrust(w.revoke("team-a"))
	w.down.Store(true)
	if v, err := j.Evaluate(t.Context(), req); !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("with the registry down: allowed %v, %v; want ErrUnavailable, since the rest cannot be had", v.Allowed(), err)
	}
	w.comeUp()
	n, v := w.taken(t, j, req)
	evidence := v.Evidence()
	if diff := cmp.Diff([]string{"team-b"}, evidence.Signers()); diff != "" || !v.Allowed() || n != 2 {
		t.Errorf("allowed %v after %d requests; signers (-want +got):\n%s", v.Allowed(), n, diff)
	}
	w.down.Store(true)
	j = w.evaluator()
	j.SetTrust(w.revoke("team-a"))
	if n, v := w.taken(t, j, req); !v.Allowed() || n != 0 {
		t.Errorf("after a restart, with the registry down: allowed %v after %d requests", v.Allowed(), n)
	}
}

// TestEvidenceFromTheFutureDoesNotCountForEver has what was collected carry a time
// that a wrong clock gave it, and the registry away.
func TestEvidenceFromTheFutureDoesNotCountForEver(t *testing.T) {
	for name, c := range map[string]struct {
		ahead   time.Duration
		allowed bool
	}{
		"a minute ahead": {time.Minute, true},
		"a year ahead":   {365 * 24 * time.Hour, false},
		"an hour ahead":  {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			j, req := w.evaluator(), gate.Request{Application: app(w.signed("xdp_count"), "count_packets", onEth0())}
			w.now = w.now.Add(c.ahead)
			_, v := w.taken(t, j, req)
			req.Digest = v.Image().Digest
			w.now = w.now.Add(-c.ahead)
			w.down.Store(true)
			v, err := w.evaluator().Evaluate(t.Context(), req)
			if c.allowed != (err == nil && v.Allowed()) {
				t.Errorf("allowed %v, %v; want %v", v.Allowed(), err, c.allowed)
			}
			w.comeUp()
			if v, err := w.evaluator().Evaluate(t.Context(), req); err != nil || !v.Allowed() {
				t.Errorf("with the registry back: allowed %v, %v", v.Allowed(), err)
			}
			w.down.Store(true)
			if v, err := w.evaluator().Evaluate(t.Context(), req); err != nil || !v.Allowed() {
				t.Errorf("away again, just after it was asked: allowed %v, %v", v.Allowed(), err)
			}
		})
	}
}

// TestAPolicyThatComesLaterIsNotAskedAboutAPart lets a policy that denies for
// an attestation come while only a part was collected.
func TestAPolicyThatComesLaterIsNotAskedAboutAPart(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	w.attest(ref, "team-b")
	j, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
	_, first := w.taken(t, j, req)
	if evidence := first.Evidence(); !first.Allowed() || !evidence.Partial {
		t.Fatalf("at first: allowed %v, partial %v", first.Allowed(), evidence.Partial)
	}
	req.Digest = first.Image().Digest
	j.SetPolicies(w.policy(refusesScanned))
	w.down.Store(true)
	if v, err := j.Evaluate(t.Context(), req); !errors.Is(err, image.ErrUnavailable) {
		t.Errorf("with the registry down: allowed %v, %v; want ErrUnavailable", v.Allowed(), err)
	}
	w.comeUp()
	if _, v := w.taken(t, j, req); v.Allowed() {
		t.Error("allowed on a part of the evidence")
	}
}

// TestAPartWithoutASignerIsNone revokes the signer whose bundle ended the first
// look, under a policy that denies nothing unsigned.
func TestAPartWithoutASignerIsNone(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	w.sign(ref, "team-b")
	j := w.evaluator()
	j.SetPolicies(w.policy(rego("deny contains \"signed\" if { input.application.kind == \"None\"; count(input.signatures) != 0 }")))
	mustEvaluate(t, j, app(ref, "count_packets", onEth0()))
	j.SetTrust(w.revoke("team-a"))
	v := mustEvaluate(t, j, app(ref, "count_packets", onEth0()))
	evidence := v.Evidence()
	if diff := cmp.Diff([]string{"team-b"}, evidence.Signers()); diff != "" || evidence.Partial {
		t.Errorf("partial %v; signers (-want +got):\n%s", evidence.Partial, diff)
	}
}

// TestWhatIsStoredOfOneImageIsNotBelievedOfAnother puts the signatures of a
// signed image in the place of an unsigned one's.
func TestWhatIsStoredOfOneImageIsNotBelievedOfAnother(t *testing.T) {
	w := newWorld(t)
	signed, unsigned := w.push("xdp_count", "v1"), w.push("xdp_pass", "v1")
	w.sign(signed, "team-a")
	mustEvaluate(t, w.evaluator(), app(signed, "count_packets", onEth0()))
	mustEvaluate(t, w.evaluator(), app(unsigned, "xdp_pass", onEth0()))
	stored := w.memory[w.stored(signed)]
	if stored == nil {
		t.Fatal("nothing is stored of the signed image")
	}
	w.memory[w.stored(unsigned)] = stored
	if v := mustEvaluate(t, w.evaluator(), app(unsigned, "xdp_pass", onEth0())); v.Allowed() {
		t.Errorf("allowed: signed by %v", v.Evidence())
	}
}

// stored is the name under which signatures of an image are kept.
func (w *world) stored(ref string) string {
	w.t.Helper()
	for name := range w.memory {
		if strings.HasSuffix(name, "-"+w.resolve(ref).Digest) {
			return name
		}
	}
	w.t.Fatalf("nothing is stored of %s", ref)
	return ""
}

// TestACopyThatNobodySignedTakesNothingAway has the unsigned copy of a signed
// image evaluated, whenever the registry is asked again.
func TestACopyThatNobodySignedTakesNothingAway(t *testing.T) {
	for form, sign := range map[string]func(*world, string, string){"legacy": (*world).sign, "bundle": (*world).bundle} {
		w := newWorld(t)
		signed := w.push("xdp_count", "v1")
		copied := strings.Replace(signed, "/bpf/", "/copied/", 1)
		if _, err := w.client.Copy(t.Context(), w.resolve(signed), copied); err != nil {
			t.Fatal(err)
		}
		sign(w, signed, "team-a")
		j := w.evaluator()
		for round := range 3 {
			if v := mustEvaluate(t, j, app(copied, "count_packets", onEth0())); v.Allowed() {
				t.Errorf("%s: the copy is allowed: signed by %v", form, v.Evidence())
			}
			if v := mustEvaluate(t, j, app(signed, "count_packets", onEth0())); !v.Allowed() {
				t.Errorf("%s, round %d: the signed image is refused: %v", form, round, rules(v))
			}
			w.now = w.now.Add(11 * time.Minute)
		}
	}
}

func TestTheInputHasAllOfTheEvidence(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	w.attest(ref, "team-b")
	input, err := w.evaluator().Input(t.Context(), gate.Request{Application: app(ref, "count_packets", onEth0())})
	if err != nil {
		t.Fatal(err)
	}
	if len(input.Signatures) != 1 || len(input.Attestations) != 1 || input.Attestations[0].Signer != "team-b" {
		t.Errorf("signatures %v, attestations %v", input.Signatures, input.Attestations)
	}
}

func TestOneVerdictRestsOnOneTrust(t *testing.T) {
	w := newWorld(t)
	j := w.evaluator()
	shaped, err := gate.Shape(gate.Request{Application: app(w.signed("xdp_count"), "count_packets", onEth0())})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := j.Resolve(t.Context(), shaped)
	if err != nil {
		t.Fatal(err)
	}
	verified, err := j.Verify(t.Context(), resolved)
	if err != nil {
		t.Fatal(err)
	}
	before := j.RevisionIn("")
	// The signer is revoked in the middle of an evaluation: what comes of it says
	// by which trust it was made, and so does not pass for one made since.
	j.SetTrust(w.revoke("team-a"))
	j.SetPolicies(w.policy(policies.Policy{Name: "p", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\ndeny contains \"no\"\n"}}))
	inspected, err := j.Inspect(t.Context(), verified)
	if err != nil {
		t.Fatal(err)
	}
	v, err := j.Decide(t.Context(), inspected)
	if err != nil || v.Revision() != before || before == j.RevisionIn("") || !v.Allowed() {
		t.Errorf("revision %q, allowed %v, %v; want the revision of before, %q, and its verdict", v.Revision(), v.Allowed(), err, before)
	}
}
