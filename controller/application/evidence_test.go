package application

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

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

// TestARevocationWaitsForNoHiddenSignature has the one signer of what runs be revoked, the signature hidden, and the registry hang,
// before the controller looked where the evidence was sealed: it is ended at once all the same.
func TestARevocationWaitsForNoHiddenSignature(t *testing.T) {
	b := newRevocations(t)
	app := b.application("app")
	b.reconcile(app.Identity())
	supply.HideSignature(t, app.Spec.Bytecode.Image)
	b.forgets(gate.Options{})
	// Admission has it collected, and knows no sealed evidence.
	if v, err := b.Evaluator.Evaluate(t.Context(), gate.Request{Application: app}); err != nil || v.Allowed() {
		t.Fatalf("allowed %v, %v", v.Allowed(), err)
	}
	b.clock = b.clock.Add(time.Second)
	b.revoke("team-a")
	b.hang(supply.Hang)
	if !b.ends(app) {
		t.Error("it runs on")
	}
}

// TestEvidenceThatCountsLaterIsSealedOnce has an image signed again by its signer, and by another one: where the signature of the
// other one is is sealed, of the same version, no copy is, nothing is sealed again while nothing changes, and a restart finds both.
func TestEvidenceThatCountsLaterIsSealedOnce(t *testing.T) {
	b := newBench(t)
	app := b.application("app")
	b.create(unsignedUnloads())
	b.refresh()
	b.reconcile(app.Identity())
	before := b.intent(app)
	b.Bundles = true
	b.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	b.Bundles = false
	b.create(b.Signer("team-b"))
	b.Push("app:v1", programs.Object("tracepoint_count"), "team-b")
	b.refresh()
	b.reconcileAnew(app)
	b.clock = b.clock.Add(soon)
	b.reconcile(app.Identity())
	next := b.intent(app)
	if next.Serial == before.Serial || next.VersionSerial() != before.VersionSerial() || len(next.Signers) != 2 || len(next.Evidence) != 2 {
		t.Fatalf("sealed %d of %d by %v, %v, before %d, %v", next.Serial, next.VersionSerial(), next.Signers, next.Evidence, before.Serial, before.Evidence)
	}
	for range 3 {
		b.clock = b.clock.Add(11 * time.Minute)
		b.reconcile(app.Identity())
		if p := b.intent(app); p.Serial != next.Serial {
			t.Fatalf("sealed again: %+v, before %+v", p, next)
		}
	}
	supply.HideSignature(t, app.Spec.Bytecode.Image)
	b.reconcileAnew(app)
	// The bundle is read first, and is enough at first.
	b.clock = b.clock.Add(soon)
	b.reconcile(app.Identity())
	if p := b.intent(app); p.Tombstone || !slices.Contains(p.Signers, "team-b") || !slices.Equal(p.Evidence, next.Evidence) {
		t.Errorf("sealed by %v, %v", p.Signers, p.Evidence)
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
