package gate_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

// listedOnly denies images of registries that are not listed.
var listedOnly = rego("deny contains {\"rule\": \"listed\", \"msg\": sprintf(\"%s is not listed\", [input.image.registry])} if input.image.registry != \"ghcr.io\"")

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
			j := w.judge()
			j.Repolicy(w.policy(c.policy))
			req := gate.Request{Application: app(w.signed("xdp_count"), "count_packets", c.attach...), Digest: c.digest}
			w.renew()
			w.down.Store(true)
			j = w.judge()
			j.Repolicy(w.policy(c.policy))
			v, err := j.Judge(t.Context(), req)
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
			s := gate.Standing{Request: req, Verdict: v}
			if verified, allowed := s.Verified(""), s.Allowed(""); verified.Status != metav1.ConditionUnknown || allowed.Status != metav1.ConditionFalse ||
				!strings.Contains(allowed.Message, "only the definition was evaluated") {
				t.Errorf("%+v, %+v", verified, allowed)
			}
			w.comeUp()
			req.Digest = ""
			if v, err := j.Judge(t.Context(), req); err != nil || v.Unevaluated() != nil || c.digest == "" && v.Allowed() {
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
	v, err := j.Judge(t.Context(), gate.Request{Application: app(strings.TrimPrefix(hangs.URL, "http://")+"/bpf/x:v1", "count_packets", onEth0())})
	if err != nil || !slices.Equal(rules(v), []string{"p/listed"}) {
		t.Errorf("denied by %v, %v", rules(v), err)
	}
	if cause := v.Unevaluated(); cause == nil || !strings.Contains(cause.Error(), "deadline of 4s") {
		t.Errorf("the deadline is not named: %v", cause)
	}
}

// TestWhatRunsIsNotUnloadedByItsDefinitionAlone has a policy that unloads deny what
// runs while the registry is away: that waits until all can be evaluated.
func TestWhatRunsIsNotUnloadedByItsDefinitionAlone(t *testing.T) {
	w := newWorld(t)
	a := app(w.signed("xdp_count"), "count_packets", onEth0())
	j := w.judge()
	runs := sealed(t, mustJudge(t, j, a), gate.Stamp{UID: "u", Serial: 7})
	unloads := listedOnly
	unloads.Spec.Running = v1alpha1.RunningUnload
	settle := func() gate.Move {
		s := gate.Standing{Request: gate.Request{Application: a, Digest: runs.ImageDigest}, Live: &runs}
		s.Verdict, s.Err = j.Judge(t.Context(), s.Request)
		if s.Err != nil || s.Verdict.Allowed() {
			t.Errorf("%v, %v", rules(s.Verdict), s.Err)
		}
		s.Held = j.Hold(t.Context(), s)
		move, _ := s.Settle(nil, false)
		return move
	}
	w.renew()
	w.down.Store(true)
	w.memory = memory{}
	j = w.judge()
	j.Repolicy(w.policy(unloads))
	if move := settle(); move != gate.MoveKeep {
		t.Errorf("with the registry away: %s", move)
	}
	w.comeUp()
	if move := settle(); move != gate.MoveBury {
		t.Errorf("with the registry back: %s", move)
	}
}
