package gate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// forgotten is an evaluator that remembers nothing, under some policies.
func (w *world) forgotten(all ...policies.Policy) *gate.Evaluator {
	w.t.Helper()
	clear(w.memory)
	evaluator := w.evaluator()
	evaluator.SetPolicies(w.policy(all...))
	return evaluator
}

// decided is what becomes of a running version whose definition is as it was, by its own verdict alone
// (hidden) and by the definition's.
func decided(ctx context.Context, e *gate.Evaluator, req gate.Request, runs *intent.Payload,
	revoked signing.Revocations) (byItself, byDefinition lifecycle.Action) {
	hidden := lifecycle.Observation{Live: runs, Hidden: true}
	hidden.Request.Reader = req.Reader
	hidden.Running = e.EvaluateRunning(ctx, hidden.Request, hidden.RunningToEvaluate())
	byItself, _ = hidden.Decide(revoked, false)
	req.Digest, req.Sealed = runs.ImageDigest, runs
	defined := lifecycle.Observation{Request: req, Live: runs}
	defined.Verdict, defined.Err = e.Evaluate(ctx, req)
	defined.Running = e.EvaluateRunning(ctx, defined.Request, defined.RunningToEvaluate())
	byDefinition, _ = defined.Decide(revoked, false)
	return byItself, byDefinition
}

func mustKeep(t *testing.T, e *gate.Evaluator, req gate.Request, runs *intent.Payload) {
	t.Helper()
	if byItself, byDefinition := decided(t.Context(), e, req, runs, nil); byItself != lifecycle.Keep || byDefinition != lifecycle.Keep {
		t.Fatalf("by itself %q, by its definition %q; want it kept", byItself, byDefinition)
	}
}

// TestWhoMayPushUnloadsNothingAfterARestart has nothing remembered of an image that a pull Secret opens, where signatures
// were last seen: a tag was moved, or a list crowded. The sealed evidence says where they are. One of the requests that
// know no sealed evidence, such as of admission, may come first.
func TestWhoMayPushUnloadsNothingAfterARestart(t *testing.T) {
	for name, attack := range attacks {
		for _, signature := range []string{"bundle", "tag"} {
			for _, referrers := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, signed by a %s, referrers API %v", name, signature, referrers), func(t *testing.T) {
					w := newWorldOf(t, referrers)
					ref := w.signedBy(signature)
					w.client = supply.Client(t, registry.Options{CacheDir: t.TempDir(), Transport: &locked{world: w, repository: "bpf/xdp-count"}})
					req := gate.Request{Application: app(ref, "count_packets", onEth0())}
					req.Reader = access.NewShared(w.client, access.SharedOptions{}).Reader("team-a", nil, access.Credential{Name: "Secret team-a/pull", Keychain: password{}})
					v, err := w.evaluator().Evaluate(t.Context(), req)
					if err != nil {
						t.Fatal(err)
					}
					runs := sealed(t, v, gate.Stamp{UID: "u", Serial: 7})
					if len(runs.Evidence) != 1 || len(w.memory) > 0 {
						t.Fatalf("sealed %v, stored %d", runs.Evidence, len(w.memory))
					}
					attackOpenly(w, ref, attack)
					mustKeep(t, w.forgotten(unsignedUnloads()), req, &runs)
					evaluator := w.forgotten(unsignedUnloads())
					passing := req
					passing.Passing, passing.Digest = true, runs.ImageDigest
					_, _ = evaluator.Evaluate(t.Context(), passing)
					for range 3 {
						mustKeep(t, evaluator, req, &runs)
						w.now = w.now.Add(11 * time.Minute)
					}
					if v, err := evaluator.Reevaluate(t.Context(), req, runs); err != nil || !v.Allowed() {
						t.Errorf("denied for %v, %v", rules(v), err)
					}
				})
			}
		}
	}
}

// attackOpenly attacks by a client that needs no password.
func attackOpenly(w *world, ref string, attack func(*world, string)) {
	client := w.client
	w.renew()
	attack(w, ref)
	w.client = client
}

// moved has the tags of cosign point to something else.
func moved(w *world, ref string) {
	w.t.Helper()
	for _, tag := range []string{".sig", ".att"} {
		w.attach(ref, w.tag(ref, tag), "")
	}
}

// copied has cosign's tag of signatures point to another manifest that has the same signature.
func copied(w *world, ref string) {
	w.t.Helper()
	found, err := collect.All(w.t.Context(), w.client, w.resolve(ref))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range found.Artifacts {
		if a.Kind == collect.LegacySignature {
			layer := describe(a.Content, signingType)
			layer.Annotations = a.Annotations
			w.attach(ref, w.tag(ref, ".sig"), "", append(w.signatures(ref, 1), layer)...)
		}
	}
}

// TestSealedEvidenceSaysOnlyWhereToLook has what is sealed count no longer than it is good, and than it is there.
func TestSealedEvidenceSaysOnlyWhereToLook(t *testing.T) {
	for sentence, c := range map[string]struct {
		change func(w *world, ref string)
		want   lifecycle.Action
	}{
		"nothing else changed":      {change: func(*world, string) {}, want: lifecycle.Keep},
		"the signature was deleted": {change: func(w *world, ref string) { w.deleteSignature(ref) }, want: lifecycle.Unload},
		"the key was replaced":      {change: func(w *world, _ string) { w.signers[0].Spec.Key = w.signers[1].Spec.Key }, want: lifecycle.Unload},
		"the signer is revoked":     {change: func(w *world, _ string) { w.signers[0].Spec.Revoked = true }, want: lifecycle.Unload},
		"it counts no more by its time": {
			change: func(w *world, _ string) { w.signers[0].Spec.NotAfter = &metav1.Time{Time: w.now.Add(-time.Hour)} }, want: lifecycle.Unload,
		},
		"the signer is gone": {change: func(w *world, _ string) { w.signers = w.signers[1:] }, want: lifecycle.Unload},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			ref := w.signed("xdp_count")
			req := gate.Request{Application: app(ref, "count_packets", onEth0())}
			runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
			c.change(w, ref)
			moved(w, ref)
			byItself, byDefinition := decided(t.Context(), w.forgotten(unsignedUnloads()), req, &runs, w.trust(w.signers...).Revoked())
			if byItself != c.want || byDefinition != c.want {
				t.Errorf("by itself %q, by its definition %q; want %q", byItself, byDefinition, c.want)
			}
		})
	}
}

// TestWhatWasNotLookedForIsUnknown has somebody else's request find no signature, and then no registry be asked for the
// sealed evidence: nothing is unloaded for what was found so.
func TestWhatWasNotLookedForIsUnknown(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
	moved(w, ref)
	evaluator := w.forgotten(unsignedUnloads())
	req.Digest = runs.ImageDigest
	if v, err := evaluator.Evaluate(t.Context(), req); err != nil || v.Allowed() {
		t.Fatalf("allowed %v, %v", v.Allowed(), err)
	}
	asked := req
	asked.Sealed = &runs
	if v, err := evaluator.Evaluate(registry.CacheOnly(t.Context()), asked); !errors.Is(err, image.ErrNotAsked) {
		t.Errorf("denied for %v, %v; want ErrNotAsked", rules(v), err)
	}
	w.down.Store(true)
	for range 2 {
		mustKeep(t, evaluator, req, &runs)
		w.now = w.now.Add(time.Minute)
	}
	w.comeUp()
	w.now = w.now.Add(time.Minute)
	if v, err := evaluator.Evaluate(t.Context(), asked); err != nil || !v.Allowed() {
		t.Errorf("denied for %v, %v", rules(v), err)
	}
}

// TestAttestationsAreSealedToo has a policy ask for what is under cosign's tag of attestations.
func TestAttestationsAreSealedToo(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	w.attest(ref, "team-b")
	wants := rego(fmt.Sprintf("deny contains \"not scanned\" if not %q in {a.predicateType | some a in input.attestations}", scanned))
	wants.Name, wants.Spec.Running = "scanned", v1alpha1.RunningUnload
	evaluator := w.evaluator()
	evaluator.SetPolicies(w.policy(unsignedUnloads(), wants))
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, evaluator, req.Application), gate.Stamp{UID: "u", Serial: 7})
	if len(runs.Evidence) != 2 {
		t.Fatalf("sealed %v", runs.Evidence)
	}
	moved(w, ref)
	mustKeep(t, w.forgotten(unsignedUnloads(), wants), req, &runs)
}

// TestSealedEvidenceIsBounded asks for more than is looked for, and for what is no digest.
func TestSealedEvidenceIsBounded(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
	evaluator := w.forgotten(unsignedUnloads())
	none, _ := w.taken(t, evaluator, req)
	req.Digest, req.Sealed = runs.ImageDigest, &runs
	if same, _ := w.taken(t, w.forgotten(unsignedUnloads()), req); same > none {
		t.Errorf("%d requests where the tag has what is sealed, %d without", same, none)
	}
	runs.Evidence = []intent.Artifact{{Kind: "signature", Manifest: "sha512:00"}, {Kind: "none", Manifest: "latest"}, {Kind: "signature"}}
	for i := range 200 {
		runs.Evidence = append(runs.Evidence, intent.Artifact{Kind: "signature", Manifest: describe(fmt.Append(nil, i), "").Digest.String()})
	}
	evaluator = w.forgotten(unsignedUnloads())
	some, v := w.taken(t, evaluator, req)
	if more := some - none; !v.Allowed() || more < 1 || more > intent.MaxEvidence {
		t.Errorf("allowed %v by %d more requests, want 1 to %d", v.Allowed(), more, intent.MaxEvidence)
	}
	if again, _ := w.taken(t, evaluator, req); again != 0 {
		t.Errorf("another %d requests at once", again)
	}
	moved(w, ref)
	evaluator = w.forgotten(unsignedUnloads())
	if _, v = w.taken(t, evaluator, req); v.Allowed() {
		t.Error("allowed without a signature")
	}
	if again, _ := w.taken(t, evaluator, req); again != 0 {
		t.Errorf("another %d requests at once for what is not there", again)
	}
}

// TestOneSealIsEnough has sealed evidence, and its lack, be no reason to seal anew, but where what is sealed is gone.
func TestOneSealIsEnough(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	evaluator, a := w.evaluator(), app(ref, "count_packets", onEth0())
	v := mustEvaluate(t, evaluator, a)
	runs := sealed(t, v, gate.Stamp{UID: "u", Serial: 7})
	before := runs
	before.Evidence = nil
	if !v.Same(runs) || !v.Same(before) || !v.SameVersion(before) || runs.Revision() != before.Revision() {
		t.Error("an intent from before there was evidence is sealed anew, or is another version")
	}
	w.bundle(ref, "team-a")
	w.now = w.now.Add(11 * time.Minute)
	if v = mustEvaluate(t, evaluator, a); !v.Same(runs) {
		t.Error("another signature of the same signer is a reason to seal anew")
	}
	for sentence, move := range map[string]func(*world, string){"and has the same": copied, "and has nothing": moved} {
		move(w, ref)
		w.now = w.now.Add(11 * time.Minute)
		if v = mustEvaluate(t, evaluator, a); !v.Same(runs) {
			t.Errorf("a tag that was moved %s is a reason to seal anew", sentence)
		}
	}
	w.deleteManifest(ref, runs.Evidence[0].Manifest)
	w.now = w.now.Add(11 * time.Minute)
	if v = mustEvaluate(t, evaluator, a); v.Same(runs) || !v.SameVersion(runs) || !v.Same(before) {
		t.Error("evidence that was deleted is not sealed anew, or another version is")
	}
	if runs = sealed(t, v, gate.Stamp{UID: "u", Serial: 8}); !v.Same(runs) || len(runs.Evidence) != 1 || runs.Evidence[0].Kind != "bundle" {
		t.Errorf("sealed %v", runs.Evidence)
	}
}

// refuse has the registry answer with a status for paths that end in something; "" ends it.
func (w *world) refuse(status int, ends ...string) {
	refuses := func(path string) int {
		if slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(path, end) }) {
			return status
		}
		return 0
	}
	w.refuses.Store(&refuses)
}

// byTwo has an image signed by team-a under cosign's tag and by team-b in a bundle, sealed by an evaluator that saw both.
func byTwo(t *testing.T, w *world, all ...policies.Policy) (ref string, evaluator *gate.Evaluator, req gate.Request, runs intent.Payload) {
	t.Helper()
	ref = w.signed("xdp_count")
	w.bundle(ref, "team-b")
	evaluator = w.evaluator()
	evaluator.SetPolicies(w.policy(all...))
	req = gate.Request{Application: app(ref, "count_packets", onEth0())}
	mustEvaluate(t, evaluator, req.Application)
	w.now = w.now.Add(11 * time.Minute)
	runs = sealed(t, mustEvaluate(t, evaluator, req.Application), gate.Stamp{UID: "u", Serial: 7})
	if len(runs.Evidence) != 2 {
		t.Fatalf("sealed %v", runs.Evidence)
	}
	req.Digest, req.Sealed = runs.ImageDigest, &runs
	return ref, evaluator, req, runs
}

// manifestOf is the sealed manifest of a kind.
func manifestOf(t *testing.T, runs intent.Payload, kind collect.Kind) string {
	t.Helper()
	for _, a := range runs.Evidence {
		if a.Kind == string(kind) {
			return a.Manifest
		}
	}
	t.Fatalf("no %s is sealed: %v", kind, runs.Evidence)
	return ""
}

// TestASealedManifestThatIsNotHandedOutHidesNoOther has the registry refuse one of two sealed manifests for good, by its digest,
// in the list and by its tag: what the other shows counts, by a process that remembers both and by one that remembers none.
func TestASealedManifestThatIsNotHandedOutHidesNoOther(t *testing.T) {
	wantsAll := rego("deny contains \"not scanned\" if count({a | some a in input.attestations}) > 7")
	wantsAll.Name = "all"
	for _, kind := range []collect.Kind{collect.LegacySignature, collect.Bundle} {
		for _, status := range []int{401, 403, 412, 451, 500, 503} {
			t.Run(fmt.Sprint(kind, " answered by ", status), func(t *testing.T) {
				w := newWorld(t)
				_, remembers, req, runs := byTwo(t, w, unsignedUnloads(), wantsAll)
				gone := manifestOf(t, runs, kind)
				w.refuse(status, gone, ".sig")
				if kind == collect.Bundle {
					w.refuse(status, gone)
				}
				for i, evaluator := range []*gate.Evaluator{remembers, w.forgotten(unsignedUnloads(), wantsAll)} {
					for round := range 4 {
						w.now = w.now.Add(11 * time.Hour)
						byItself, byDefinition := decided(t.Context(), evaluator, req, &runs, nil)
						if byItself != lifecycle.Keep || byDefinition == lifecycle.Unload {
							t.Fatalf("by itself %q, by its definition %q", byItself, byDefinition)
						}
						again, v := w.taken(t, evaluator, req)
						if !v.Allowed() || again != 0 {
							t.Fatalf("denied for %v, another %d requests at once", rules(v), again)
						}
						// What is remembered counts for a day.
						evidence := v.Evidence()
						if by := evidence.Signers(); (len(by) == 2) != (i == 0 && round < 2) {
							t.Fatalf("signed by %v in round %d", by, round)
						}
						if next := sealed(t, v, gate.Stamp{UID: "u", Serial: 8}); len(next.Evidence) != 2 {
							t.Fatalf("sealed %v", next.Evidence)
						}
					}
				}
			})
		}
	}
}

// TestASealedManifestThatIsNotHandedOutUnloadsNothing has the only signature refused, or not be found in a registry that does not
// even show the image: it could not be determined, and is not asked about over and over.
func TestASealedManifestThatIsNotHandedOutUnloadsNothing(t *testing.T) {
	var content string
	for sentence, refuse := range map[string]func(w *world, runs intent.Payload){
		"the manifest is refused": func(w *world, runs intent.Payload) { w.refuse(http.StatusForbidden, runs.Evidence[0].Manifest) },
		"its content is refused": func(w *world, runs intent.Payload) {
			w.refuse(http.StatusUnavailableForLegalReasons, content)
		},
		"nothing is shown": func(w *world, runs intent.Payload) {
			w.refuse(http.StatusNotFound, runs.Evidence[0].Manifest, runs.ImageDigest)
		},
		"the image is shown to no more": func(w *world, runs intent.Payload) {
			w.refuse(http.StatusNotFound, runs.Evidence[0].Manifest)
			w.also(http.StatusForbidden, "/manifests/"+runs.ImageDigest)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorldOf(t, false)
			ref := w.signedBy("bundle")
			content = w.bundleOf(ref)
			req := gate.Request{Application: app(ref, "count_packets", onEth0())}
			runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
			w.index(ref, w.tag(ref, ""))
			evaluator := w.forgotten(unsignedUnloads())
			// Admission knows the object of the image, and no sealed evidence.
			if v := mustEvaluate(t, evaluator, req.Application); v.Allowed() {
				t.Fatal("allowed without a signature")
			}
			refuse(w, runs)
			req.Digest, req.Sealed = runs.ImageDigest, &runs
			for range 3 {
				mustKeep(t, evaluator, req, &runs)
				before := w.requests.Load()
				for range 3 {
					if v, err := evaluator.Evaluate(t.Context(), req); err == nil {
						t.Fatalf("denied for %v", rules(v))
					}
				}
				if again := w.requests.Load() - before; again != 0 {
					t.Errorf("another %d requests at once", again)
				}
				w.now = w.now.Add(11 * time.Hour)
			}
			mustKeep(t, evaluator, req, &runs)
			// Another application of the image asks a moment later, and is answered by what there is.
			w.now = w.now.Add(time.Second)
			other := req
			other.Sealed, other.Changed = nil, w.now
			if v, err := evaluator.Evaluate(t.Context(), other); err == nil && v.Allowed() {
				t.Error("another application is allowed")
			}
			mustKeep(t, evaluator, req, &runs)
			w.refuses.Store(nil)
			w.now = w.now.Add(3 * time.Minute)
			if v, err := evaluator.Evaluate(t.Context(), req); err != nil || !v.Allowed() {
				t.Errorf("denied for %v, %v, though it is handed out again", rules(v), err)
			}
		})
	}
}

// also is refuse of something more.
func (w *world) also(status int, end string) {
	before := *w.refuses.Load()
	refuses := func(path string) int {
		if strings.HasSuffix(path, end) {
			return status
		}
		return before(path)
	}
	w.refuses.Store(&refuses)
}

// TestEvidenceThatCountsLaterIsSealed has an attestation, and a signature of another signer, come after the first seal: each is
// sealed once, no copy is, and a restart finds both where they were hidden.
func TestEvidenceThatCountsLaterIsSealed(t *testing.T) {
	wants := rego(fmt.Sprintf("deny contains \"not scanned\" if not %q in {a.predicateType | some a in input.attestations}", scanned))
	wants.Spec.Running = v1alpha1.RunningUnload
	for sentence, beside := range map[string]bool{"signed beside the image": true, "signed in a repository of the signer": false} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			if beside {
				w.sign(ref, "team-a")
			} else {
				w.signElsewhere(ref, "team-a")
			}
			evaluator, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
			runs := sealed(t, mustEvaluate(t, evaluator, req.Application), gate.Stamp{UID: "u", Serial: 7})
			if runs.Evidence == nil {
				t.Fatal("that there is no evidence is not sealed")
			}
			w.attest(ref, "team-b")
			evaluator.SetPolicies(w.policy(wants))
			req.Digest, req.Sealed = runs.ImageDigest, &runs
			first := len(runs.Evidence)
			for round := range 4 {
				w.now = w.now.Add(11 * time.Minute)
				v, err := evaluator.Evaluate(t.Context(), req)
				if err != nil || !v.Allowed() || v.Same(runs) != (round > 0) || !v.SameVersion(runs) {
					t.Fatalf("round %d: allowed %v, same %v, %v", round, v.Allowed(), v.Same(runs), err)
				}
				runs = sealed(t, v, gate.Stamp{UID: "u", Serial: runs.Serial + 1})
				if beside {
					copied(w, ref)
				}
			}
			if len(runs.Evidence) != first+1 {
				t.Errorf("sealed %v", runs.Evidence)
			}
			moved(w, ref)
			mustKeep(t, w.forgotten(wants), req, &runs)
		})
	}
}

// TestWhatWasNotLookedForStaysSealed has a new definition sealed on a part of the evidence, after a restart: what was sealed
// of the rest stays.
func TestWhatWasNotLookedForStaysSealed(t *testing.T) {
	w := newWorld(t)
	ref, _, req, runs := byTwo(t, w)
	w.bundle(ref, "team-a")
	again := w.forgotten()
	changed := app(ref, "count_packets", onEth0())
	changed.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}}
	req.Application = changed
	v, err := again.Evaluate(t.Context(), req)
	if err != nil || !v.Evidence().Partial {
		t.Fatalf("evidence %+v, %v", v.Evidence(), err)
	}
	if v.Same(runs) {
		t.Error("the definition did not change")
	}
	if next := sealed(t, v, gate.Stamp{UID: "u", Serial: 8}); len(next.Evidence) < 2 || !slices.Contains(next.Evidence, runs.Evidence[0]) ||
		!slices.Contains(next.Evidence, runs.Evidence[1]) {
		t.Errorf("sealed %v, before %v", next.Evidence, runs.Evidence)
	}
}

// TestWhoMayPushRemovesNoSealedSigner has the signature hidden of one of two signers, and another application of the image
// evaluated first after a restart: the running version is allowed without that signer, and is looked for by where it was sealed.
func TestWhoMayPushRemovesNoSealedSigner(t *testing.T) {
	w := newWorld(t)
	ref, _, req, runs := byTwo(t, w)
	moved(w, ref)
	evaluator := w.forgotten(wantsSigner("team-b"))
	if v := mustEvaluate(t, evaluator, req.Application); !v.Allowed() || v.Same(runs) {
		t.Fatal("another application knows of the hidden signature")
	}
	kept := registry.CacheOnly(t.Context())
	if v, err := evaluator.Evaluate(kept, req); err != nil || !v.Allowed() || !v.Outdated() {
		t.Errorf("allowed %v, outdated %v, %v, while no registry is asked", v.Allowed(), v.Outdated(), err)
	}
	for round := range 3 {
		requests, v := w.taken(t, evaluator, req)
		if !v.Allowed() || !v.Same(runs) || requests > 0 != (round == 0) {
			evidence := v.Evidence()
			t.Errorf("round %d: allowed %v by %v, %d requests", round, v.Allowed(), evidence.Signers(), requests)
		}
	}
	// What is gone is asked for once.
	w.deleteManifest(ref, manifestOf(t, runs, collect.LegacySignature))
	evaluator = w.forgotten(wantsSigner("team-b"))
	mustEvaluate(t, evaluator, req.Application)
	for round := range 3 {
		if requests, v := w.taken(t, evaluator, req); !v.Allowed() || v.Same(runs) || requests > 0 != (round == 0) {
			t.Errorf("round %d: allowed %v, %d requests for what is gone", round, v.Allowed(), requests)
		}
	}
}

// TestAPartIsNoReasonToSealAnew has a copy come to the list of referrers, which is read first: the sealed manifest was not
// looked for, and is not replaced.
func TestAPartIsNoReasonToSealAnew(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
	req.Digest, req.Sealed = runs.ImageDigest, &runs
	w.bundle(ref, "team-a")
	again := w.forgotten()
	for range 3 {
		v, err := again.Evaluate(t.Context(), req)
		if err != nil || !v.Allowed() || !v.Same(runs) {
			t.Errorf("allowed %v, same %v, partial %v, %v", v.Allowed(), v.Same(runs), v.Evidence().Partial, err)
		}
		w.now = w.now.Add(time.Minute)
	}
}

// TestAnAdminMayReplaceAKey has an image signed anew, with the key that takes the place of a signer's: that is sealed in the place
// of what counts no more, the old signature does not count, and the new one is found though it is hidden.
func TestAnAdminMayReplaceAKey(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	evaluator, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, evaluator, req.Application), gate.Stamp{UID: "u", Serial: 7})
	before := runs.Evidence[0]
	w.signers[0].Spec.Key = w.signers[1].Spec.Key
	w.signers = w.signers[:1]
	evaluator.SetTrust(w.trust(w.signers...))
	w.signAs(ref, "team-b", sign.Options{})
	w.now = w.now.Add(11 * time.Minute)
	req.Digest, req.Sealed = runs.ImageDigest, &runs
	v, err := evaluator.Evaluate(t.Context(), req)
	if err != nil || !v.Allowed() || v.Same(runs) {
		t.Fatalf("allowed %v, same %v, %v", v.Allowed(), v.Same(runs), err)
	}
	if runs = sealed(t, v, gate.Stamp{UID: "u", Serial: 8}); len(runs.Evidence) != 1 || runs.Evidence[0] == before {
		t.Errorf("sealed %v, before %v", runs.Evidence, before)
	}
	moved(w, ref)
	mustKeep(t, w.forgotten(unsignedUnloads()), req, &runs)
	w.signers[0].Spec.Revoked = true
	revoked := w.trust(w.signers...).Revoked()
	byItself, byDefinition := decided(t.Context(), w.forgotten(unsignedUnloads()), req, &runs, revoked)
	if byItself != lifecycle.Unload || byDefinition != lifecycle.Unload {
		t.Errorf("by itself %q, by its definition %q, though its signer is revoked", byItself, byDefinition)
	}
}

// TestARevocationNeedsNoManifest has the registry refuse the sealed manifest of a signer who is revoked.
func TestARevocationNeedsNoManifest(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
	w.refuse(http.StatusForbidden, runs.Evidence[0].Manifest, ".sig")
	w.signers[0].Spec.Revoked = true
	revoked := w.trust(w.signers...).Revoked()
	byItself, byDefinition := decided(t.Context(), w.forgotten(unsignedUnloads()), req, &runs, revoked)
	if byItself != lifecycle.Unload || byDefinition != lifecycle.Unload {
		t.Errorf("by itself %q, by its definition %q", byItself, byDefinition)
	}
}

// TestSealedEvidenceOfManyIsLookedForOnce has forty applications of one image that were allowed by manifests of their own, none
// of which is there any more.
func TestSealedEvidenceOfManyIsLookedForOnce(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	runs := sealed(t, mustEvaluate(t, w.evaluator(), app(ref, "count_packets", onEth0())), gate.Stamp{UID: "u", Serial: 7})
	moved(w, ref)
	evaluator := w.forgotten(unsignedUnloads())
	for round := range 2 {
		for i := range 40 {
			one := runs
			one.Evidence = []intent.Artifact{{Kind: "signature", Manifest: describe(fmt.Append(nil, i), "").Digest.String()}}
			req := gate.Request{Application: app(ref, "count_packets", onEth0()), Digest: runs.ImageDigest, Sealed: &one}
			requests, v := w.taken(t, evaluator, req)
			if v.Allowed() || round > 0 && requests != 0 {
				t.Fatalf("application %d: allowed %v, %d requests in round %d", i, v.Allowed(), requests, round)
			}
		}
	}
}

// signElsewhere signs an image in a repository that only the signer may push to.
func (w *world) signElsewhere(ref, signer string) {
	w.t.Helper()
	repository := strings.TrimPrefix(w.server.URL, "http://") + "/signatures/" + signer
	at, err := w.client.Pin(repository, w.resolve(ref).Digest)
	if err == nil {
		err = sign.Image(w.t.Context(), w.client, at, w.keys[signer], sign.Options{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range w.signers {
		if w.signers[i].Name == signer {
			w.signers[i].Spec.Repository = repository
		}
	}
}

// TestMoreEvidenceThanIsSealedIsSealedOnce has an image be signed by more than is sealed, and attested: signatures come first, and
// what has no place is no reason to seal anew.
func TestMoreEvidenceThanIsSealedIsSealedOnce(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.attest(ref, "team-b")
	for i := range intent.MaxEvidence + 2 {
		_, key := plainKey(t)
		public, err := key.Public()
		if err != nil {
			t.Fatal(err)
		}
		s := w.signers[0]
		s.Name, s.Spec.Key = fmt.Sprint("s", i), &v1alpha1.KeySigner{PublicKey: string(public)}
		w.signers, w.keys[s.Name] = append(w.signers, s), key
		w.bundle(ref, s.Name)
	}
	evaluator, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
	mustEvaluate(t, evaluator, req.Application)
	w.now = w.now.Add(11 * time.Minute)
	runs := sealed(t, mustEvaluate(t, evaluator, req.Application), gate.Stamp{UID: "u", Serial: 7})
	if len(runs.Evidence) != intent.MaxEvidence || slices.ContainsFunc(runs.Evidence, func(a intent.Artifact) bool { return a.Kind != "bundle" }) {
		t.Errorf("sealed %v", runs.Evidence)
	}
	req.Digest, req.Sealed = runs.ImageDigest, &runs
	for range 2 {
		w.now = w.now.Add(11 * time.Minute)
		v, err := evaluator.Evaluate(t.Context(), req)
		if err != nil || !v.Same(runs) {
			t.Errorf("same %v, %v", v.Same(runs), err)
		}
	}
}

// TestWhatDidNotChangeIsStoredOnce has an application whose intent says where the evidence is, and one without an intent, denied
// by turns for one image, and a registry that never refuses by the same words: what is collected is the same, and stored once.
func TestWhatDidNotChangeIsStoredOnce(t *testing.T) {
	for sentence, refused := range map[string]string{"a signature that counts no more": "", "a tag that is refused": ".sig"} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			ref := w.signedBy("bundle")
			w.bundle(ref, "team-b")
			req := gate.Request{Application: app(ref, "count_packets", onEth0())}
			runs := sealed(t, mustEvaluate(t, w.evaluator(), req.Application), gate.Stamp{UID: "u", Serial: 7})
			w.signers[0].Spec.Key = &v1alpha1.KeySigner{PublicKey: w.other()}
			w.signers = w.signers[:1]
			w.client = supply.Client(t, registry.Options{CacheDir: t.TempDir(), Transport: &wordy{world: w, end: refused}})
			evaluator := w.forgotten(unsignedUnloads())
			req.Digest = runs.ImageDigest
			for round := range 4 {
				for _, of := range []*intent.Payload{&runs, nil} {
					req.Sealed = of
					before := w.requests.Load()
					if v, err := evaluator.Evaluate(t.Context(), req); err == nil && v.Allowed() || w.requests.Load() == before {
						t.Fatalf("round %d: allowed, or not asked about; %v", round, err)
					}
					if stored := len(w.memory) > 0; stored != (round == 0 && of != nil) {
						t.Errorf("round %d, sealed %v: stored %v", round, of != nil, stored)
					}
					clear(w.memory)
					w.now = w.now.Add(125 * time.Second)
				}
			}
		})
	}
}

// other is a public key that signed nothing.
func (w *world) other() string {
	w.t.Helper()
	_, key := plainKey(w.t)
	public, err := key.Public()
	if err != nil {
		w.t.Fatal(err)
	}
	return string(public)
}

// wordy refuses what ends in something, each time by other words.
type wordy struct {
	*world
	end     string
	refused atomic.Int64
}

func (r *wordy) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.end == "" || !strings.HasSuffix(req.URL.Path, r.end) {
		return r.world.RoundTrip(req)
	}
	answer := httptest.NewRecorder()
	answer.WriteHeader(http.StatusForbidden)
	_, _ = fmt.Fprintf(answer, `{"errors":[{"code":"DENIED","message":"correlation %d"}]}`, r.refused.Add(1))
	result := answer.Result()
	result.Request = req
	return result, nil
}
