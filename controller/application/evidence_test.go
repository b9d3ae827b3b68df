package application

import (
	"encoding/json"
	"errors"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// hideSignature has cosign's tag of an image's signatures point to a manifest without one, as a person can who may push.
func (b *bench) hideSignature(ref string) {
	b.t.Helper()
	pusher := supply.Client(b.t, registry.Options{CacheDir: b.t.TempDir()})
	r, err := pusher.Resolve(b.t.Context(), ref)
	if err != nil {
		b.t.Fatal(err)
	}
	config := []byte("{}")
	of := v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: image.Sum(config), Size: int64(len(config))}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: of, Layers: []v1.Descriptor{}})
	if err != nil {
		b.t.Fatal(err)
	}
	digest, err := v1.NewHash(r.Digest)
	if err != nil {
		b.t.Fatal(err)
	}
	to, err := pusher.Attachments(r)
	if err == nil {
		is := v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: image.Sum(manifest), Size: int64(len(manifest))}
		err = errors.Join(to.PutBlob(b.t.Context(), of, config), to.PutManifest(b.t.Context(), is, manifest, collect.SignatureTag(digest)))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

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
			b.hideSignature(app.Spec.Bytecode.Image)
			b.forgets(gate.Options{})
			b.reconcile(app.Identity())
			if p := b.intent(app); p.Tombstone || p.Serial != before.Serial {
				t.Errorf("sealed %+v, before %+v", p, before)
			}
		})
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
