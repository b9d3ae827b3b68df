package gate_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
)

// TestABrokenDefinitionIsNotUnloadedForWhatItNoLongerSays breaks the definition
// of what runs, under policies that unload.
func TestABrokenDefinitionIsNotUnloadedForWhatItNoLongerSays(t *testing.T) {
	for name, c := range map[string]struct {
		rego string
		want lifecycle.Action
	}{
		"a label is asked for, which nobody can read": {"deny contains \"no owner\" if not input.application.metadata.labels.owner", lifecycle.Keep},
		"the bytecode is refused":                     {"deny contains \"counts\" if input.bytecode.programs[_].name == \"count_packets\"", lifecycle.Unload},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.sign(ref, "team-a")
			evaluator := w.evaluator()
			runs := sealed(t, mustEvaluate(t, evaluator, app(ref, "count_packets", onEth0())), gate.Stamp{UID: "u", Serial: 7})
			unloads := rego(c.rego)
			unloads.Spec.Running = v1alpha1.RunningUnload
			evaluator.SetPolicies(w.policy(unloads))
			s := lifecycle.Observation{Live: &runs, Hidden: true}
			s.Running = evaluator.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
			if move, why := s.Decide(nil, false); move != c.want {
				t.Errorf("Decide = %s (%s), want %s", move, why, c.want)
			}
		})
	}
}

// TestWhosePolicyUnloads has policies of the cluster and of a namespace unload what runs
// in it: by its definition, by what runs where the definition is hidden, and where the
// registry is away.
func TestWhosePolicyUnloads(t *testing.T) {
	ofCluster := unloading(deniesDefinition)
	own := ofCluster
	own.Namespace = "team"
	for name, c := range map[string]struct {
		policies  []policies.Policy
		byCluster bool
	}{
		"one of the cluster":   {[]policies.Policy{ofCluster}, true},
		"one of the namespace": {[]policies.Policy{own}, false},
		"both":                 {[]policies.Policy{own, ofCluster}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			defined := &v1alpha1.BpfApplication{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", Generation: 1},
				Spec:       app(w.signed("xdp_count"), "count_packets", inPods()).Spec,
			}
			evaluator := w.evaluator()
			runs := sealed(t, mustEvaluate(t, evaluator, defined), gate.Stamp{UID: "u", Serial: 7})
			evaluator.SetPolicies(w.policy(c.policies...))
			standings := map[string]lifecycle.Observation{
				"its definition": {Live: &runs, Request: gate.Request{Application: defined}, Verdict: mustEvaluate(t, evaluator, defined)},
				"what runs":      {Live: &runs, Hidden: true},
			}
			away := standings["what runs"]
			away.Running = evaluator.EvaluateRunningBy(t.Context(), away.Request, away.RunningToEvaluate(), func(context.Context, gate.Request) (gate.Verdict, error) {
				return gate.Verdict{}, gate.ErrPending
			})
			standings["what runs, without a registry"] = away
			for what, s := range standings {
				if what == "what runs" {
					s.Running = evaluator.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
				}
				if !s.Unloads() || s.UnloadsByCluster() != c.byCluster {
					t.Errorf("%s: unloaded %t, by a policy of the cluster %t", what, s.Unloads(), s.UnloadsByCluster())
				}
			}
		})
	}
}

// looks counts decisions by whether they were remembered.
type looks struct{ remembered, made int }

func (l *looks) Signatures(gate.Origin) {}

func (l *looks) Looked(what gate.Recall, remembered bool) {
	switch {
	case what != gate.RecallDecisions:
	case remembered:
		l.remembered++
	default:
		l.made++
	}
}

// TestADecisionOutlivesAnotherNamespacesEdit has a namespace edit its policies: what was
// decided elsewhere is remembered.
func TestADecisionOutlivesAnotherNamespacesEdit(t *testing.T) {
	w, seen := newWorld(t), &looks{}
	w.observer = seen
	evaluator := w.evaluator()
	defined := &v1alpha1.BpfApplication{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app", Generation: 1},
		Spec:       app(w.signed("xdp_count"), "count_packets", inPods()).Spec,
	}
	for _, c := range []struct {
		what string
		in   []string
		made int
	}{
		{"nobody has a policy", nil, 1},
		{"another namespace has one", []string{"another"}, 0},
		{"the namespace has one", []string{"another", "team"}, 1},
		{"the cluster has one", []string{""}, 1},
	} {
		var list []policies.Policy
		for _, namespace := range c.in {
			p := rego("deny contains \"no\" if false")
			p.Namespace = namespace
			list = append(list, p)
		}
		evaluator.SetPolicies(w.policy(list...))
		*seen = looks{}
		mustEvaluate(t, evaluator, defined)
		if seen.made != c.made || seen.made+seen.remembered != 1 {
			t.Errorf("%s: %d decisions are made, %d remembered", c.what, seen.made, seen.remembered)
		}
	}
}
