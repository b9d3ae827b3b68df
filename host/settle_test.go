package host

import (
	"errors"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
)

// TestSettle covers every case that needs no verdict of a real gate; those that
// do are in the kernel tests.
func TestSettle(t *testing.T) {
	id := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	def := definition{app: &v1alpha1.ClusterBpfApplication{}}
	asleep := &v1alpha1.ClusterBpfApplication{}
	asleep.Spec.Suspend = true
	running := &intent.Payload{Serial: 1, Signers: []string{"a"}}
	twice := &intent.Payload{Serial: 1, Signers: []string{"a", "b"}}
	unsigned := &intent.Payload{Serial: 1}
	buried := &intent.Payload{Serial: 1, Tombstone: true}
	unreachable := errors.New("registry out of reach")
	for name, c := range map[string]struct {
		s       standing
		revoked []string
		want    move
	}{
		"gone from the source":                     {standing{live: running}, nil, bury},
		"gone, or in a file that cannot be read":   {standing{live: running, hidden: true}, nil, keep},
		"gone, and buried before":                  {standing{live: buried}, nil, keep},
		"denied and never loaded":                  {standing{judged: &judgement{def: def}}, nil, keep},
		"denied, and what runs was admitted":       {standing{live: running, judged: &judgement{def: def}}, nil, keep},
		"denied, and its signer is revoked":        {standing{live: running, judged: &judgement{def: def}}, []string{"a"}, bury},
		"one of two signers is revoked":            {standing{live: twice, judged: &judgement{def: def}}, []string{"a"}, keep},
		"both signers are revoked":                 {standing{live: twice, judged: &judgement{def: def}}, []string{"b", "a"}, bury},
		"admitted without signature":               {standing{live: unsigned, judged: &judgement{def: def}}, []string{"a"}, keep},
		"not to be told":                           {standing{live: running, judged: &judgement{def: def, err: unreachable}}, nil, keep},
		"not to be told, and its signer revoked":   {standing{live: running, judged: &judgement{def: def, err: unreachable}}, []string{"a"}, bury},
		"hidden, and its signer revoked":           {standing{live: running, hidden: true}, []string{"a"}, bury},
		"overruled while suspended":                {standing{live: running, held: held{overruled: true}, judged: &judgement{def: definition{app: asleep}}}, nil, bury},
		"overruled while not to be told":           {standing{live: running, held: held{overruled: true}, judged: &judgement{def: def, err: unreachable}}, nil, bury},
		"overruled while hidden":                   {standing{live: running, held: held{overruled: true}, hidden: true}, nil, bury},
		"suspended":                                {standing{live: running, judged: &judgement{def: definition{app: asleep}}}, nil, keep},
		"suspended, and its signer revoked":        {standing{live: running, judged: &judgement{def: definition{app: asleep}}}, []string{"a"}, bury},
		"refused since one of two is revoked":      {standing{live: twice, held: held{orphaned: true}, judged: &judgement{def: def}}, []string{"a"}, bury},
		"hidden, refused since one is revoked":     {standing{live: twice, held: held{orphaned: true}, hidden: true}, []string{"a"}, bury},
		"suspended, refused since one is revoked":  {standing{live: twice, held: held{orphaned: true}, judged: &judgement{def: definition{app: asleep}}}, []string{"a"}, bury},
		"its signer revoked, another signed since": {standing{live: running, held: held{stands: true}, judged: &judgement{def: def, err: unreachable}}, []string{"a"}, keep},
		"buried before, and its signer revoked":    {standing{live: buried, judged: &judgement{def: def}}, []string{"a"}, keep},
		"never loaded, and nobody can tell of it":  {standing{judged: &judgement{def: def, err: unreachable}}, nil, keep},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.id = id
			got, why := settle(c.s, c.revoked, false)
			if got != c.want {
				t.Errorf("settle = %s (%s), want %s", got, why, c.want)
			}
			if got == bury && why == "" {
				t.Error("buried without a reason")
			}
		})
	}
	if got, _ := settle(standing{id: id, live: running, held: held{overruled: true}, hidden: true}, nil, true); got != keep {
		t.Errorf("the brake let %s through", got)
	}
	if unloadsAnew(standing{live: running, judged: &judgement{def: def, verdict: gate.Verdict{}}}) {
		t.Error("a denial that keeps what runs counts for the brake")
	}
}

func TestGenerationsTellSpecsApart(t *testing.T) {
	app := func(change func(*v1alpha1.ClusterBpfApplication)) int64 {
		a := &v1alpha1.ClusterBpfApplication{}
		a.Name, a.Spec.Bytecode.Image = "app", "registry.example.com/a:v1"
		change(a)
		g, err := generationOf(a)
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
		"nothing":       {func(*v1alpha1.ClusterBpfApplication) {}, true},
		"a label":       {func(a *v1alpha1.ClusterBpfApplication) { a.Labels = map[string]string{"a": "b"} }, true},
		"the image":     {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Bytecode.Image = "registry.example.com/a:v2" }, false},
		"being suspend": {func(a *v1alpha1.ClusterBpfApplication) { a.Spec.Suspend = true }, false},
		"requestedAt": {func(a *v1alpha1.ClusterBpfApplication) {
			a.Annotations = map[string]string{requestedAt: "2026-01-01T00:00:00Z"}
		}, false},
	} {
		if got := app(c.change) == base; got != c.same {
			t.Errorf("%s: same generation %v, want %v", name, got, c.same)
		}
	}
}
