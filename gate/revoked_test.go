package gate_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing/collect"
)

// wantsTwo denies what fewer than two signers signed.
var wantsTwo = rego("deny contains \"fewer than two\" if count({s.signer | some s in input.signatures}) < 2")

// fails is a policy that cannot be evaluated, on anything.
var fails = rego("two := 1\n\ntwo := 2 if input.version\n\ndeny contains \"two\" if two == 3")

// strangers sign what a reference stands for, with keys that nobody knows.
func (w *world) strangers(ref string, many int) {
	w.t.Helper()
	_, w.keys["stranger"] = plainKey(w.t)
	for range many {
		w.bundle(ref, "stranger")
	}
}

// untag takes the signatures off cosign's tag, as who may push can.
func (w *world) untag(ref string) {
	w.t.Helper()
	digest, err := v1.NewHash(w.resolve(ref).Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	repository, _, _ := strings.Cut(strings.TrimPrefix(ref, strings.TrimPrefix(w.server.URL, "http://")+"/"), ":")
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodDelete, w.server.URL+"/v2/"+repository+"/manifests/"+collect.SignatureTag(digest), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode >= 300 {
		w.t.Fatalf("take the signatures off the tag: %s", resp.Status)
	}
}

// TestARevocationActsOnWhatWasSealed has what runs evaluated anew after one of its
// signers is revoked, and after whoever may push has edited what the registry says.
func TestARevocationActsOnWhatWasSealed(t *testing.T) {
	attested := rego("deny contains \"no attestation\" if count(input.attestations) == 0")
	never, always := rego("deny contains \"never\""), rego("deny contains \"none\" if input.application.kind == \"None\"")
	for name, c := range map[string]struct {
		// signers sealed it under before; policy decides now.
		before, policy policies.Policy
		revoked        string
		attack         func(w *world, ref string)
		want           lifecycle.Action
	}{
		"the policy wants two":                        {before: wantsTwo, policy: wantsTwo, revoked: "team-a", want: lifecycle.Unload},
		"the policy wants the one who is revoked":     {before: wantsTwo, policy: wantsSigner("team-a"), revoked: "team-a", want: lifecycle.Unload},
		"the policy wants the other":                  {before: wantsTwo, policy: wantsSigner("team-b"), revoked: "team-a", want: lifecycle.Keep},
		"the policy wants anybody":                    {before: wantsTwo, policy: wantsSomebody, revoked: "team-a", want: lifecycle.Keep},
		"the policy denies it whoever signed":         {before: wantsTwo, policy: never, revoked: "team-a", want: lifecycle.Unload},
		"the policy denies it, and nobody is revoked": {before: wantsTwo, policy: never, want: lifecycle.Keep},
		"the policy wants two, and strangers sign": {
			wantsTwo, wantsTwo, "team-a", func(w *world, ref string) { w.strangers(ref, 80) }, lifecycle.Unload,
		},
		"the policy wants two, and the signature is gone": {wantsTwo, wantsTwo, "team-a", (*world).untag, lifecycle.Unload},
		"the policy wants two, and the registry is away":  {wantsTwo, wantsTwo, "team-a", func(w *world, _ string) { w.down.Store(true) }, lifecycle.Unload},
		"the registry is away, and the cache is empty": {
			wantsTwo, wantsTwo, "team-a", func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Unload,
		},
		"the registry is away, and the other is enough": {
			wantsTwo, wantsSomebody, "team-a", func(w *world, _ string) { w.down.Store(true) }, lifecycle.Keep,
		},
		"all is away, and the other is enough": {
			wantsTwo, wantsSomebody, "team-a", func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Keep,
		},
		"all is away, and bytecode that nobody has is why": {
			wantsTwo, rego("deny contains \"no programs\" if count(input.bytecode.programs) == 0"), "team-a", func(w *world, _ string) { w.renew(); w.down.Store(true) },
			lifecycle.Keep,
		},
		"the policy fails":                           {before: wantsTwo, policy: fails, revoked: "team-a", want: lifecycle.Keep},
		"the policy fails, and the registry is away": {wantsTwo, fails, "team-a", func(w *world, _ string) { w.down.Store(true) }, lifecycle.Keep},
		"the policy fails, and all is away": {
			wantsTwo, fails, "team-a", func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Keep,
		},
		"all is away, and the definition is denied": {
			wantsTwo, rego("deny contains \"a name\" if input.application.metadata.name == \"app\""), "team-a",
			func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Unload,
		},
		"the registry is away, and the record has no attestation": {wantsTwo, attested, "team-a", func(w *world, _ string) { w.down.Store(true) }, lifecycle.Unload},
		"all is away, and nobody can tell of an attestation": {
			wantsTwo, attested, "team-a", func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Keep,
		},
		"the record has no attestation, and nobody is revoked": {wantsTwo, attested, "", func(w *world, _ string) { w.down.Store(true) }, lifecycle.Keep},
		"the registry is away, and nobody is revoked":          {wantsTwo, always, "", func(w *world, _ string) { w.renew(); w.down.Store(true) }, lifecycle.Keep},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.sign(ref, "team-a")
			w.bundle(ref, "team-b")
			j := w.evaluator()
			j.SetPolicies(w.policy(c.before))
			a := app(ref, "count_packets", onEth0())
			runs := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
			if !slices.Equal(runs.Signers, []string{"team-a", "team-b"}) {
				t.Fatalf("sealed with %v", runs.Signers)
			}
			if c.attack != nil {
				c.attack(w, ref)
			}
			// The process and its memory are new.
			w.memory = memory{}
			j = w.evaluator()
			j.SetPolicies(w.policy(c.policy))
			j.SetTrust(w.revoke(c.revoked))
			for how, s := range map[string]lifecycle.Observation{
				"as it is": {Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs},
				"hidden":   {Live: &runs, Hidden: true},
			} {
				if s.Request.Application != nil {
					s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
				}
				s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
				// Unload protection has no say.
				move, why := s.Decide(w.revoke(c.revoked).Revoked(), true)
				if move != c.want && !(move == lifecycle.Seal && c.want == lifecycle.Keep) {
					t.Errorf("%s: Decide = %s (%s), want %s", how, move, why, c.want)
				}
				if move == lifecycle.Unload && !strings.Contains(why, "team-a") {
					t.Errorf("%s: the reason does not name the signer: %s", how, why)
				}
			}
		})
	}
}

// TestABrokenPolicyHidesNoRevocation has a policy that does not compile deny the
// definition alone while all is away: what the record says counts beside it.
func TestABrokenPolicyHidesNoRevocation(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.sign(ref, "team-a")
	w.bundle(ref, "team-b")
	j := w.evaluator()
	j.SetPolicies(w.policy(wantsTwo))
	a := app(ref, "count_packets", onEth0())
	runs := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
	w.renew()
	w.down.Store(true)
	w.memory = memory{}
	broken := rego("deny contains")
	broken.Name = "broken"
	set, err := engine.Compile(t.Context(), []policies.Policy{wantsTwo, broken}, policies.Options{})
	if set == nil {
		t.Fatal(err)
	}
	j = w.evaluator()
	j.SetPolicies(set)
	j.SetTrust(w.revoke("team-a"))
	s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
	s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
	s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
	if move, why := s.Decide(w.revoke("team-a").Revoked(), true); move != lifecycle.Unload {
		t.Errorf("Decide = %s (%s)", move, why)
	}
	if s.Running = j.WeighRunning(t.Context(), s.Request, s.RunningToEvaluate()); s.Running != (gate.RunningVerdict{}) {
		t.Errorf("the record is asked for unload protection, which it passes: %+v", s.Running)
	}
}

// TestStrangersHideNoRevocation has more signatures of strangers than reasons are
// kept.
func TestStrangersHideNoRevocation(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.sign(ref, "team-a")
	collected, err := collect.All(t.Context(), w.client, w.resolve(ref))
	if err != nil {
		t.Fatal(err)
	}
	mine := collected.Artifacts
	_, w.keys["stranger"] = plainKey(t)
	w.untag(ref)
	w.sign(ref, "stranger")
	if collected, err = collect.All(t.Context(), w.client, w.resolve(ref)); err != nil || len(collected.Artifacts) != 1 {
		t.Fatal(err, len(collected.Artifacts))
	}
	strange := collected.Artifacts[0]
	for i := range 100 {
		strange.Origin = fmt.Sprintf("stranger %d", i)
		collected.Artifacts = append(collected.Artifacts, strange)
	}
	collected.Artifacts = append(collected.Artifacts, mine...)
	evidence, err := w.revoke("team-a").Verify(t.Context(), collected, w.now)
	if err != nil || !slices.Equal(evidence.Revoked, []string{"team-a"}) {
		t.Errorf("revoked %v, %v; want team-a", evidence.Revoked, err)
	}
	if len(evidence.Rejected) == 0 || evidence.Rejected[0].Signer != "team-a" {
		t.Errorf("the revocation is not said first: %+v", evidence.Rejected[:1])
	}
}

// TestSlowPoliciesOfANamespaceKeepNothingOfARevokedSigner has policies of the
// application's own namespace take all time, while one of the cluster denies it.
func TestSlowPoliciesOfANamespaceKeepNothingOfARevokedSigner(t *testing.T) {
	slow := rego(`deny contains "x" if {
	some i in numbers.range(1, 2000)
	some j in numbers.range(1, 2000)
	some k in numbers.range(1, 2000)
	i * j * k == -1
}`)
	slow.Namespace = "team"
	for name, away := range map[string]bool{"as it is": false, "the registry is away, and the cache is empty": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.sign(ref, "team-a")
			w.bundle(ref, "team-b")
			a := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app"}, Spec: app(ref, "count_packets", inPods()).Spec}
			j := w.evaluator()
			j.SetPolicies(w.policy(wantsTwo))
			runs := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
			if away {
				w.renew()
				w.down.Store(true)
				w.memory = memory{}
			}
			own := policies.NewEngine(policies.EngineOptions{})
			t.Cleanup(own.Close)
			set, err := own.Compile(t.Context(), []policies.Policy{wantsTwo, slow}, policies.Options{Timeout: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			j, err = gate.New(gate.Options{Images: w.client, Trust: w.revoke("team-a"), Policies: set, Memory: w.memory, Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
			s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
			s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
			if move, why := s.Decide(w.revoke("team-a").Revoked(), true); move != lifecycle.Unload {
				t.Errorf("Decide = %s (%s)", move, why)
			}
		})
	}
}
