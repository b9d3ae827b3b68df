package gate_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// listedOnly denies images of registries that are not listed.
var listedOnly = rego("deny contains {\"rule\": \"listed\", \"msg\": sprintf(\"%s is not listed\", " +
	"[input.image.registry])} if input.image.registry != \"ghcr.io\"")

// TestADefinitionIsDeniedWithTheRegistryAway has policies deny what the definition
// says, and wait for what an image says.
func TestADefinitionIsDeniedWithTheRegistryAway(t *testing.T) {
	front := rego("deny contains {\"rule\": \"front\", \"msg\": \"the front\"} if input.application.spec.programs[_].attach[_].priority < 1000")
	hooks := rego("deny contains {\"rule\": \"hooks\", \"msg\": \"another hook\"} if input.application.spec.programs[_].attach[_].hook != \"tcx/ingress\"")
	digest := rego("deny contains {\"rule\": \"digest\", \"msg\": input.image.digest} if startswith(input.image.digest, \"sha256:0\")")
	unhooked := onEth0()
	unhooked.Hook = ""
	pinned := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		policy policies.Policy
		attach []v1alpha1.Attachment
		digest string
		want   string
	}{
		"a registry that is not listed":                  {policy: listedOnly, attach: []v1alpha1.Attachment{onEth0()}, want: "listed"},
		"a definition that the object completes":         {policy: listedOnly, want: "listed"},
		"a hook that the definition names":               {policy: hooks, attach: []v1alpha1.Attachment{onEth0()}, want: "hooks"},
		"a priority that is the default":                 {policy: front, attach: []v1alpha1.Attachment{onEth0()}, want: "front"},
		"a hook that the object names":                   {policy: hooks, attach: []v1alpha1.Attachment{unhooked}},
		"a program that is attached as its section says": {policy: hooks},
		"a hook that may have no priority":               {policy: front, attach: []v1alpha1.Attachment{unhooked}},
		"a digest that the definition does not pin":      {policy: digest, attach: []v1alpha1.Attachment{onEth0()}},
		"a digest that the tag stood for":                {policy: digest, attach: []v1alpha1.Attachment{onEth0()}, digest: pinned, want: "digest"},
		"a signature":                                    {policy: wantsSomebody, attach: []v1alpha1.Attachment{onEth0()}},
		"a policy that fails on what is known":           {policy: rego("deny contains \"x\" if to_number(input.image.tag) == 1")},
		"a policy that is tried out":                     {policy: audited(listedOnly)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			j := w.evaluator()
			j.SetPolicies(w.policy(c.policy))
			req := gate.Request{Application: app(w.signed("xdp_count"), "count_packets", c.attach...), Digest: c.digest}
			w.renew()
			w.down.Store(true)
			j = w.evaluator()
			j.SetPolicies(w.policy(c.policy))
			v, err := j.Evaluate(t.Context(), req)
			if c.want == "" {
				if !errors.Is(err, image.ErrUnavailable) {
					t.Errorf("denied by %v, %v; want ErrUnavailable", rules(v), err)
				}
				return
			}
			if err != nil || v.Allowed() || !slices.Equal(rules(v), []string{"p/" + c.want}) {
				t.Fatalf("denied by %v, %v", rules(v), err)
			}
			if warned := v.Decision().Warnings; !errors.Is(v.Unevaluated(), image.ErrUnavailable) || len(warned) != 1 || warned[0].Rule != "evaluate/definition" {
				t.Errorf("it does not say that there may be more: %v, %+v", v.Unevaluated(), warned)
			}
			s := lifecycle.Observation{Request: req, Verdict: v}
			if verified, allowed := s.Verified(""), s.Allowed(""); verified.Status != metav1.ConditionUnknown || allowed.Status != metav1.ConditionFalse ||
				!strings.Contains(allowed.Message, "only the definition was evaluated") {
				t.Errorf("%+v, %+v", verified, allowed)
			}
			w.comeUp()
			req.Digest = ""
			if v, err := j.Evaluate(t.Context(), req); err != nil || v.Unevaluated() != nil || c.digest == "" && v.Allowed() {
				t.Errorf("with the registry back: denied by %v, %v, %v", rules(v), v.Unevaluated(), err)
			}
		})
	}
}

func audited(p policies.Policy) policies.Policy {
	p.Spec.Mode = v1alpha1.PolicyAudit
	return p
}

// TestADefinitionIsDeniedWithinTheDeadline has a registry hang: time for the policies
// is left.
func TestADefinitionIsDeniedWithinTheDeadline(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	j, err := gate.New(gate.Options{Images: w.client, Trust: w.trust(w.signers...), Policies: w.policy(listedOnly), Timeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	v, err := j.Evaluate(t.Context(), gate.Request{Application: app(strings.TrimPrefix(hangs.URL, "http://")+"/bpf/x:v1", "count_packets", onEth0())})
	if err != nil || !slices.Equal(rules(v), []string{"p/listed"}) {
		t.Errorf("denied by %v, %v", rules(v), err)
	}
	if cause := v.Unevaluated(); cause == nil || !strings.Contains(cause.Error(), "deadline of 4s") {
		t.Errorf("the deadline is not named: %v", cause)
	}
}

// unloading is a policy of some Rego that has what it denies unloaded.
func unloading(text string) policies.Policy {
	p := rego(text)
	p.Spec.Running = v1alpha1.RunningUnload
	return p
}

const (
	deniesDefinition = `deny contains "a name" if input.application.metadata.name == "app"`
	deniesBytecode   = `deny contains "counts" if input.bytecode.programs[_].name == "count_packets"`
	deniesUnsigned   = `deny contains "unsigned" if count(input.signatures) == 0`
)

// TestWhatRunsWaitsForNoRegistry has no registry tell anything of what runs: it is out of
// reach, or its answer is awaited. What a policy that unloads denies of the definition, or
// of bytecode in the cache, is unloaded. What only lacks its evidence is kept.
func TestWhatRunsWaitsForNoRegistry(t *testing.T) {
	kept, unloaded := lifecycle.Keep, lifecycle.Unload
	for name, c := range map[string]struct {
		policy policies.Policy
		// alone is what becomes of it by its definition alone, cached with its bytecode.
		alone, cached lifecycle.Action
		// authored says that it is kept where its definition cannot be read.
		authored bool
	}{
		"the definition is denied":             {policy: unloading(deniesDefinition), alone: unloaded, cached: unloaded},
		"a policy that keeps denies it":        {policy: rego(deniesDefinition), alone: kept, cached: kept},
		"a policy that is tried out denies it": {policy: audited(unloading(deniesDefinition)), alone: kept, cached: kept},
		"a label is asked for": {
			policy: unloading(`deny contains "no owner" if not input.application.metadata.labels.owner`), alone: unloaded, cached: unloaded, authored: true,
		},
		"the bytecode is denied": {policy: unloading(deniesBytecode), alone: kept, cached: unloaded},
		"the bytecode lacks a map": {
			policy: unloading(`deny contains "x" if count([m | some m in input.bytecode.maps; m.type == "Arena"]) == 0`), alone: kept, cached: unloaded,
		},
		"the image has no label":             {policy: unloading(`deny contains "x" if not input.image.labels.team`), alone: kept, cached: unloaded},
		"one of two rules is about evidence": {policy: unloading(deniesDefinition + "\n\n" + deniesUnsigned), alone: unloaded, cached: unloaded},
		"one rule is about both": {policy: unloading(`deny contains "x" if {
			input.application.metadata.name == "app"
			count(input.signatures) == 0
		}`), alone: kept, cached: kept},
		"nobody signed": {policy: unloading(deniesUnsigned), alone: kept, cached: kept},
		"not signed": {policy: unloading(`deny contains "x" if not signed

		signed if input.signatures[_].signer == "team-a"`), alone: kept, cached: kept},
		"no first signature": {policy: unloading(`deny contains "x" if not input.signatures[0]`), alone: kept, cached: kept},
		"not signed by default": {policy: unloading(`default signed := false

		signed if input.signatures[_].signer == "team-a"

		deny contains "x" if signed == false`), alone: kept, cached: kept},
		"else not signed": {policy: unloading(`by := "team-a" if {
			input.signatures[_].signer == "team-a"
		} else := "nobody"

		deny contains "x" if by == "nobody"`), alone: kept, cached: kept},
		"a comprehension over signatures": {policy: unloading(`deny contains "x" if {
			names := {s.signer | some s in input.signatures}
			not "team-a" in names
		}`), alone: kept, cached: kept},
		"every signature": {policy: unloading(`deny contains "x" if {
			every s in input.signatures { s.signer != "team-a" }
		}`), alone: kept, cached: kept},
		"a function of signatures": {policy: unloading(`few(list) if count(list) < 1

		deny contains "x" if few(input.signatures)`), alone: kept, cached: kept},
		"signatures by a computed key": {policy: unloading(`deny contains "x" if {
			some key in ["signatures"]
			count(input[key]) == 0
		}`), alone: kept, cached: kept, authored: true},
		"signatures in the whole input": {
			policy: unloading(`deny contains "x" if object.get(input, "signatures", []) == []`), alone: kept, cached: kept, authored: true,
		},
		"signatures that are replaced": {
			policy: unloading(`deny contains "x" if count(input.signatures) == 0 with input.signatures as []`), alone: kept, cached: kept,
		},
		"no attestation":             {policy: unloading(`deny contains "x" if count(input.attestations) == 0`), alone: kept, cached: kept},
		"it fails on the definition": {policy: unloading(`deny contains "x" if to_number(input.application.metadata.name) == 1`), alone: kept, cached: kept},
		"it fails on evidence, perhaps": {
			policy: unloading(deniesDefinition + "\n\n" + `deny contains "x" if to_number(input.signatures[0].signer) == 1`), alone: unloaded, cached: unloaded,
		},
		"the reason quotes the evidence": {
			policy: unloading(`deny contains sprintf("%v", [input.signatures]) if input.application.metadata.name == "app"`), alone: kept, cached: kept,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := app(w.signed("xdp_count"), "count_packets", onEth0())
			runs := sealed(t, mustEvaluate(t, w.evaluator(), a), gate.Stamp{UID: "u", Serial: 7})
			set := w.policy(c.policy)
			for _, cache := range []struct {
				state string
				empty bool
				want  lifecycle.Action
			}{{"bytecode in the cache", false, c.cached}, {"an empty cache", true, c.alone}} {
				if cache.empty {
					w.renew()
				}
				j := w.evaluator()
				j.SetPolicies(set)
				for _, cause := range []error{gate.ErrPending, image.ErrNotAsked, image.ErrUnavailable} {
					evaluate := func(context.Context, gate.Request) (gate.Verdict, error) { return gate.Verdict{}, cause }
					defined := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Err: cause, Live: &runs}
					defined.Running = j.EvaluateRunningBy(t.Context(), defined.Request, defined.RunningToEvaluate(), evaluate)
					if move, why := defined.Decide(nil, false); move != cache.want {
						t.Errorf("%s, %v: Decide = %s (%s), want %s", cache.state, cause, move, why, cache.want)
					}
					if move, why := defined.Decide(nil, true); move != kept {
						t.Errorf("%s, %v: unload protection lets it through: %s", cache.state, cause, why)
					}
					if waits := defined.Pending(); waits != (cache.want == kept && errors.Is(cause, gate.ErrPending)) {
						t.Errorf("%s, %v: pending %v", cache.state, cause, waits)
					}
					hidden := lifecycle.Observation{Live: &runs, Hidden: true}
					hidden.Running = j.EvaluateRunningBy(t.Context(), hidden.Request, hidden.RunningToEvaluate(), evaluate)
					if move, why := hidden.Decide(nil, false); move != cache.want && !c.authored || c.authored && move != kept {
						t.Errorf("%s, %v, hidden: Decide = %s (%s)", cache.state, cause, move, why)
					}
				}
			}
		})
	}
}

// TestARegistryKeepsNothingThatItsDefinitionIsDeniedFor has whoever may have a registry
// be away, or forget the image, do so once the program runs.
func TestARegistryKeepsNothingThatItsDefinitionIsDeniedFor(t *testing.T) {
	for name, attack := range map[string]func(*world){
		"it is away":           func(w *world) { w.down.Store(true) },
		"it forgets the image": func(w *world) { w.server.Config.Handler = http.NotFoundHandler() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := app(w.signed("xdp_count"), "count_packets", onEth0())
			runs := sealed(t, mustEvaluate(t, w.evaluator(), a), gate.Stamp{UID: "u", Serial: 7})
			w.renew()
			w.memory = memory{}
			attack(w)
			j := w.evaluator()
			for _, c := range []struct {
				policy policies.Policy
				want   lifecycle.Action
			}{{unloading(deniesDefinition), lifecycle.Unload}, {unloading(deniesUnsigned), lifecycle.Keep}} {
				j.SetPolicies(w.policy(c.policy))
				s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
				s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
				s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
				if move, why := s.Decide(nil, false); move != c.want {
					t.Errorf("%s: Decide = %s (%s), want %s", c.policy.Spec.Rego, move, why, c.want)
				}
				if s.Verdict.Allowed() {
					t.Errorf("%s: it is allowed", c.policy.Spec.Rego)
				}
				ends, end := context.WithCancel(t.Context())
				s.Running = j.EvaluateRunningBy(ends, s.Request, s.RunningToEvaluate(), func(context.Context, gate.Request) (gate.Verdict, error) {
					end()
					return gate.Verdict{}, errors.New("too many wait for the registry")
				})
				if move, why := s.Decide(nil, false); move != c.want {
					t.Errorf("%s: where an evaluation is ended, Decide = %s (%s), want %s", c.policy.Spec.Rego, move, why, c.want)
				}
				beside := lifecycle.ObserveVersion(gate.Request{Application: a}, runs)
				beside.Running = j.EvaluateRunning(t.Context(), beside.Request, beside.RunningToEvaluate())
				fate := beside.VersionVerdict(nil)
				if fate.Known || fate.Keeps != (c.want == lifecycle.Keep) || fate.Denied == fate.Keeps {
					t.Errorf("%s: beside another version: %+v", c.policy.Spec.Rego, fate)
				}
			}
		})
	}
}

// TestAnnotationsThatAreTooLargeKeepNothing has an author give a definition annotations
// that leave no room for policies to be asked about it.
func TestAnnotationsThatAreTooLargeKeepNothing(t *testing.T) {
	w := newWorld(t)
	a := app(w.signed("xdp_count"), "count_packets", onEth0())
	j := w.evaluator()
	runs := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
	a.Annotations = map[string]string{"large": strings.Repeat("x", 5<<20)}
	for _, c := range []struct {
		policy policies.Policy
		want   lifecycle.Action
	}{
		{unloading(deniesDefinition), lifecycle.Unload},
		{unloading(deniesBytecode), lifecycle.Unload},
		{unloading(`deny contains "large" if input.application.metadata.annotations.large`), lifecycle.Keep},
		{unloading(`deny contains "no owner" if not input.application.metadata.labels.owner`), lifecycle.Keep},
		{rego(deniesDefinition), lifecycle.Keep},
	} {
		j.SetPolicies(w.policy(c.policy))
		s := lifecycle.Observation{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
		s.Verdict, s.Err = j.Evaluate(t.Context(), s.Request)
		s.Running = j.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
		if move, why := s.Decide(nil, false); s.Err != nil || move != c.want {
			t.Errorf("%s: Decide = %s (%s), %v, want %s", c.policy.Spec.Rego, move, why, s.Err, c.want)
		}
	}
}
