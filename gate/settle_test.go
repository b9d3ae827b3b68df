package gate

import (
	"errors"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
)

// revocations are those of signers altogether.
func revocations(names ...string) signing.Revocations {
	all := signing.Revocations{}
	for _, name := range names {
		all[name] = signing.Revocation{}
	}
	return all
}

// TestSettle covers every case that needs no verdict of a real gate; those that
// do are in the kernel tests.
func TestSettle(t *testing.T) {
	def := Request{Application: &v1alpha1.ClusterBpfApplication{}}
	asleep := Request{Application: &v1alpha1.ClusterBpfApplication{Spec: v1alpha1.BpfApplicationSpec{Suspend: true}}}
	running := &intent.Payload{Serial: 1, Signers: []string{"a"}}
	twice := &intent.Payload{Serial: 1, Signers: []string{"a", "b"}}
	unsigned := &intent.Payload{Serial: 1}
	unloaded := &intent.Payload{Serial: 1, Tombstone: true}
	unreachable := errors.New("registry out of reach")
	for name, c := range map[string]struct {
		s       Observation
		revoked []string
		want    Move
	}{
		"gone from the source":                     {Observation{Live: running}, nil, MoveUnload},
		"gone, or in a file that cannot be read":   {Observation{Live: running, Hidden: true}, nil, MoveKeep},
		"gone, and unloaded before":                {Observation{Live: unloaded}, nil, MoveKeep},
		"denied and never loaded":                  {Observation{Request: def}, nil, MoveKeep},
		"denied, and what runs was admitted":       {Observation{Live: running, Request: def}, nil, MoveKeep},
		"denied, and its signer is revoked":        {Observation{Live: running, Request: def}, []string{"a"}, MoveUnload},
		"one of two signers is revoked":            {Observation{Live: twice, Request: def}, []string{"a"}, MoveKeep},
		"both signers are revoked":                 {Observation{Live: twice, Request: def}, []string{"b", "a"}, MoveUnload},
		"admitted without signature":               {Observation{Live: unsigned, Request: def}, []string{"a"}, MoveKeep},
		"not to be told":                           {Observation{Live: running, Request: def, Err: unreachable}, nil, MoveKeep},
		"not to be told, and its signer revoked":   {Observation{Live: running, Request: def, Err: unreachable}, []string{"a"}, MoveUnload},
		"hidden, and its signer revoked":           {Observation{Live: running, Hidden: true}, []string{"a"}, MoveUnload},
		"overruled while suspended":                {Observation{Live: running, Running: RunningVerdict{overruled: true}, Request: asleep}, nil, MoveUnload},
		"overruled while not to be told":           {Observation{Live: running, Running: RunningVerdict{overruled: true}, Request: def, Err: unreachable}, nil, MoveUnload},
		"overruled while hidden":                   {Observation{Live: running, Running: RunningVerdict{overruled: true}, Hidden: true}, nil, MoveUnload},
		"suspended":                                {Observation{Live: running, Request: asleep}, nil, MoveKeep},
		"suspended, and its signer revoked":        {Observation{Live: running, Request: asleep}, []string{"a"}, MoveUnload},
		"refused since one of two is revoked":      {Observation{Live: twice, Running: RunningVerdict{evaluated: true}, Request: def}, []string{"a"}, MoveUnload},
		"hidden, refused since one is revoked":     {Observation{Live: twice, Running: RunningVerdict{evaluated: true}, Hidden: true}, []string{"a"}, MoveUnload},
		"suspended, refused since one is revoked":  {Observation{Live: twice, Running: RunningVerdict{evaluated: true}, Request: asleep}, []string{"a"}, MoveUnload},
		"one is revoked, denied by the record":     {Observation{Live: twice, Running: RunningVerdict{deniedByRecord: true}, Request: def, Err: unreachable}, []string{"a"}, MoveUnload},
		"denied by the record, and none revoked":   {Observation{Live: twice, Running: RunningVerdict{deniedByRecord: true}, Request: def, Err: unreachable}, nil, MoveKeep},
		"its signer revoked, and still asked for":  {Observation{Live: running, Running: RunningVerdict{pending: ErrPending}, Request: def, Err: ErrPending}, []string{"a"}, MoveKeep},
		"refused, and nobody it names is revoked":  {Observation{Live: twice, Running: RunningVerdict{evaluated: true}, Request: def}, []string{"c"}, MoveKeep},
		"one is revoked, and a policy fails":       {Observation{Live: twice, Running: RunningVerdict{evaluated: true, unknown: true}, Request: def}, []string{"a"}, MoveKeep},
		"both are revoked, and a policy fails":     {Observation{Live: twice, Running: RunningVerdict{evaluated: true, unknown: true}, Request: def}, []string{"a", "b"}, MoveUnload},
		"its signer revoked, another signed since": {Observation{Live: running, Running: RunningVerdict{evaluated: true, stands: true}, Request: def, Err: unreachable}, []string{"a"}, MoveKeep},
		"unloaded before, and its signer revoked":  {Observation{Live: unloaded, Request: def}, []string{"a"}, MoveKeep},
		"never loaded, and nobody can tell of it":  {Observation{Request: def, Err: unreachable}, nil, MoveKeep},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := c.s.Decide(revocations(c.revoked...), false)
			if got != c.want {
				t.Errorf("Settle = %s (%s), want %s", got, why, c.want)
			}
			if got == MoveUnload && why == "" {
				t.Error("unloaded without a reason")
			}
		})
	}
	if got, _ := (Observation{Live: running, Running: RunningVerdict{overruled: true}, Hidden: true}).Decide(nil, true); got != MoveKeep {
		t.Errorf("unload protection let %s through", got)
	}
	if (Observation{Live: running, Request: def}).Unloads() {
		t.Error("a denial that keeps what runs counts for unload protection")
	}
}

func TestGenerationsTellSpecsApart(t *testing.T) {
	app := func(change func(*v1alpha1.ClusterBpfApplication)) int64 {
		a := &v1alpha1.ClusterBpfApplication{}
		a.Name, a.Spec.Bytecode.Image = "app", "registry.example.com/a:v1"
		change(a)
		g, err := Generation(a)
		if err != nil || g <= 0 {
			t.Fatalf("generation %d, %v", g, err)
		}
		return g
	}
	base := app(func(*v1alpha1.ClusterBpfApplication) {})
	for name, c := range map[string]struct {
		change func(*v1alpha1.ClusterBpfApplication)
		same   bool
	}{
		"nothing":         {func(*v1alpha1.ClusterBpfApplication) {}, true},
		"a label":         {func(a *v1alpha1.ClusterBpfApplication) { a.Labels = map[string]string{"a": "b"} }, true},
		"the image":       {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Bytecode.Image = "registry.example.com/a:v2" }, false},
		"being suspended": {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Suspend = true }, true},
		"its steps":       {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Rollout = &v1alpha1.Rollout{} }, true},
		"requestedAt": {func(a *v1alpha1.ClusterBpfApplication) {
			a.Annotations = map[string]string{AnnotationRequestedAt: "2026-01-01T00:00:00Z"}
		}, false},
	} {
		if got := app(c.change) == base; got != c.same {
			t.Errorf("%s: same generation %v, want %v", name, got, c.same)
		}
	}
}
