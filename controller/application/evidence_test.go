package application

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// unsignedUnloads is a policy that unloads what nobody signed.
func unsignedUnloads() *v1alpha1.ClusterBpfPolicy {
	p := denies(v1alpha1.RunningUnload)
	p.Spec.Rego += notSigned
	return p
}

// TestASignatureThatIsHiddenUnloadsNothingAfterARestart has the signature of what runs hidden while no controller runs, and
// the next one remember nothing: what runs is kept.
func TestASignatureThatIsHiddenUnloadsNothingAfterARestart(t *testing.T) {
	for sentence, change := range map[string]func(b *bench, app *v1alpha1.ClusterBpfApplication){
		"as it is defined": func(*bench, *v1alpha1.ClusterBpfApplication) {},
		"while its definition is broken": func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			b.change(app, func() { app.Spec.Programs[0].Name = "none"; app.Generation++ })
		},
		"while it is suspended": func(b *bench, app *v1alpha1.ClusterBpfApplication) {
			b.change(app, func() { app.Spec.Suspend = true; app.Generation++ })
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			b := newBench(t)
			app := b.application("app")
			b.create(unsignedUnloads())
			b.refresh()
			b.reconcile(app.Identity())
			before := b.intent(app)
			change(b, app)
			supply.HideSignature(t, app.Spec.Bytecode.Image)
			b.forgets(gate.Options{})
			b.reconcile(app.Identity())
			if p := b.intent(app); p.Tombstone || p.Serial != before.Serial {
				t.Errorf("sealed %+v, before %+v", p, before)
			}
		})
	}
}

// TestAHiddenSignatureOfTheVersionBesideUnloadsNothing has the signature of the version before hidden, which nodes hold that a
// rollout did not reach.
func TestAHiddenSignatureOfTheVersionBesideUnloadsNothing(t *testing.T) {
	b := newBench(t)
	b.node("one")
	b.node("two")
	app := b.application("app")
	b.create(unsignedUnloads())
	b.refresh()
	b.reconcile(app.Identity())
	before := app.Spec.Bytecode.Image
	next, _ := b.Push("app:v2", append(programs.Object("tracepoint_count"), 0), "team-a")
	b.change(app, func() {
		app.Spec.Bytecode.Image, app.Spec.Rollout.Steps = next, []intstr.IntOrString{intstr.FromInt32(1), intstr.FromString("100%")}
		app.Generation++
	})
	b.reconcile(app.Identity())
	if p := b.intent(app); p.Previous == nil || len(p.Evidence) != 1 || len(p.Previous.Evidence) != 1 {
		t.Fatalf("sealed %+v", p)
	}
	supply.HideSignature(t, before)
	if p := b.reconcileAnew(app); p.Previous == nil || p.Tombstone {
		t.Errorf("sealed %+v", p)
	}
}

// TestAnUpgradeSealsNothingForEvidence has what runs sealed by a controller that knew no evidence: it is judged as before,
// and nothing is sealed until something else changes.
func TestAnUpgradeSealsNothingForEvidence(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.create(unsignedUnloads())
	b.refresh()
	b.reconcile(app.Identity())
	var o v1alpha1.BpfIntent
	o.Name = string(app.GetUID())
	b.change(&o, func() { o.Spec.Envelope = withoutEvidence(t, o.Spec.Envelope) })
	before := b.intent(app)
	if before.Evidence != nil || b.reconcileAnew(app).Serial != before.Serial {
		t.Fatalf("evidence %v; it is sealed anew for none", before.Evidence)
	}
	// Another signer is a reason to seal anew, and is of the same version.
	b.Push("app:v1", programs.Object("tracepoint_count"), "team-b")
	b.create(b.Signer("team-b"))
	b.refresh()
	next := b.reconcileAnew(app)
	if next.Serial == before.Serial || len(next.Evidence) != 1 || next.VersionSerial() != before.Serial || next.Revision() != before.Revision() {
		t.Errorf("sealed %+v, before %+v", next, before)
	}
}

// reconcileAnew is reconcile by a controller that remembers nothing.
func (b *bench) reconcileAnew(app application) *intent.Payload {
	b.t.Helper()
	b.forgets(gate.Options{})
	b.reconcile(app.Identity())
	return b.intent(app)
}

// withoutEvidence is an envelope as a controller sealed it that knew no evidence.
func withoutEvidence(t *testing.T, envelope []byte) []byte {
	t.Helper()
	var all map[string]json.RawMessage
	err := json.Unmarshal(envelope, &all)
	if err != nil || all["evidence"] == nil {
		t.Fatalf("no evidence is sealed: %v", err)
	}
	delete(all, "evidence")
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
