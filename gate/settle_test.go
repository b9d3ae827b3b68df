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
	buried := &intent.Payload{Serial: 1, Tombstone: true}
	unreachable := errors.New("registry out of reach")
	for name, c := range map[string]struct {
		s       Standing
		revoked []string
		want    Move
	}{
		"gone from the source":                     {Standing{Live: running}, nil, MoveBury},
		"gone, or in a file that cannot be read":   {Standing{Live: running, Hidden: true}, nil, MoveKeep},
		"gone, and buried before":                  {Standing{Live: buried}, nil, MoveKeep},
		"denied and never loaded":                  {Standing{Request: def}, nil, MoveKeep},
		"denied, and what runs was admitted":       {Standing{Live: running, Request: def}, nil, MoveKeep},
		"denied, and its signer is revoked":        {Standing{Live: running, Request: def}, []string{"a"}, MoveBury},
		"one of two signers is revoked":            {Standing{Live: twice, Request: def}, []string{"a"}, MoveKeep},
		"both signers are revoked":                 {Standing{Live: twice, Request: def}, []string{"b", "a"}, MoveBury},
		"admitted without signature":               {Standing{Live: unsigned, Request: def}, []string{"a"}, MoveKeep},
		"not to be told":                           {Standing{Live: running, Request: def, Err: unreachable}, nil, MoveKeep},
		"not to be told, and its signer revoked":   {Standing{Live: running, Request: def, Err: unreachable}, []string{"a"}, MoveBury},
		"hidden, and its signer revoked":           {Standing{Live: running, Hidden: true}, []string{"a"}, MoveBury},
		"overruled while suspended":                {Standing{Live: running, Held: Held{overruled: true}, Request: asleep}, nil, MoveBury},
		"overruled while not to be told":           {Standing{Live: running, Held: Held{overruled: true}, Request: def, Err: unreachable}, nil, MoveBury},
		"overruled while hidden":                   {Standing{Live: running, Held: Held{overruled: true}, Hidden: true}, nil, MoveBury},
		"suspended":                                {Standing{Live: running, Request: asleep}, nil, MoveKeep},
		"suspended, and its signer revoked":        {Standing{Live: running, Request: asleep}, []string{"a"}, MoveBury},
		"refused since one of two is revoked":      {Standing{Live: twice, Held: Held{judged: true}, Request: def}, []string{"a"}, MoveBury},
		"hidden, refused since one is revoked":     {Standing{Live: twice, Held: Held{judged: true}, Hidden: true}, []string{"a"}, MoveBury},
		"suspended, refused since one is revoked":  {Standing{Live: twice, Held: Held{judged: true}, Request: asleep}, []string{"a"}, MoveBury},
		"one is revoked, denied by the record":     {Standing{Live: twice, Held: Held{deniedByRecord: true}, Request: def, Err: unreachable}, []string{"a"}, MoveBury},
		"denied by the record, and none revoked":   {Standing{Live: twice, Held: Held{deniedByRecord: true}, Request: def, Err: unreachable}, nil, MoveKeep},
		"its signer revoked, and still asked for":  {Standing{Live: running, Held: Held{pending: ErrPending}, Request: def, Err: ErrPending}, []string{"a"}, MoveKeep},
		"refused, and nobody it names is revoked":  {Standing{Live: twice, Held: Held{judged: true}, Request: def}, []string{"c"}, MoveKeep},
		"one is revoked, and a policy fails":       {Standing{Live: twice, Held: Held{judged: true, unknown: true}, Request: def}, []string{"a"}, MoveKeep},
		"both are revoked, and a policy fails":     {Standing{Live: twice, Held: Held{judged: true, unknown: true}, Request: def}, []string{"a", "b"}, MoveBury},
		"its signer revoked, another signed since": {Standing{Live: running, Held: Held{judged: true, stands: true}, Request: def, Err: unreachable}, []string{"a"}, MoveKeep},
		"buried before, and its signer revoked":    {Standing{Live: buried, Request: def}, []string{"a"}, MoveKeep},
		"never loaded, and nobody can tell of it":  {Standing{Request: def, Err: unreachable}, nil, MoveKeep},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := c.s.Settle(revocations(c.revoked...), false)
			if got != c.want {
				t.Errorf("Settle = %s (%s), want %s", got, why, c.want)
			}
			if got == MoveBury && why == "" {
				t.Error("buried without a reason")
			}
		})
	}
	if got, _ := (Standing{Live: running, Held: Held{overruled: true}, Hidden: true}).Settle(nil, true); got != MoveKeep {
		t.Errorf("the brake let %s through", got)
	}
	if (Standing{Live: running, Request: def}).Unloads() {
		t.Error("a denial that keeps what runs counts for the brake")
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
