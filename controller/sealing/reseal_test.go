package sealing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// payloads are intents of all sorts.
func payloads() []intent.Payload {
	whole := func(uid string, serial int64) intent.Payload {
		return intent.Payload{
			Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: uid}, UID: uid, Serial: serial,
			Image: "r.invalid/a:v1", ImageDigest: "sha256:" + strings.Repeat("a", 64), ObjectDigest: "sha256:" + strings.Repeat("b", 64),
			Programs: []v1alpha1.Program{{Name: "p"}}, Signers: []string{"team-a"},
		}
	}
	rolling, before := whole("rolling", 9), whole("rolling", 8)
	before.Evidence = []intent.Artifact{{Kind: "bundle", Manifest: "sha256:1"}}
	rolling.Evidence = before.Evidence
	rolling.Rollout, rolling.Previous, rolling.Undone = &intent.Rollout{Step: 2, Through: "8000000000000000"}, &before, 3
	gone := intent.Payload{Application: rolling.Application, UID: "gone", Serial: 5, Tombstone: true, Reason: "it was deleted"}
	return []intent.Payload{rolling, gone, whole("one", 1), whole("two", 2), whole("three", 3)}
}

// rotating is a ring whose key was replaced after it sealed intents.
func rotating(t *testing.T, now *time.Time) (*Resealer, func() []v1alpha1.BpfIntent) {
	t.Helper()
	s := store(t, strings.ToLower(t.Name()), now)
	ring, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range payloads() {
		e, err := ring.Keys().Sealer.Seal(p)
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: p.UID}, Spec: v1alpha1.BpfIntentSpec{
			Envelope: e, Application: p.Application, Serial: p.Serial, Tombstone: p.Tombstone, Digest: p.ImageDigest,
		}}
		if err := s.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Client.Delete(context.Background(), o) })
	}
	ask(t, s, "1")
	for range 2 {
		if err := ring.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		*now = now.Add(11 * time.Minute)
	}
	if !ring.Keys().Former {
		t.Fatal("the key was not replaced")
	}
	return &Resealer{Client: s.Client, Live: s.Client, Ring: ring, Batch: 2}, func() []v1alpha1.BpfIntent {
		t.Helper()
		var all v1alpha1.BpfIntentList
		if err := s.Client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return all.Items
	}
}

func TestAFormerKeyGoesOnceNothingIsSealedWithIt(t *testing.T) {
	now := time.Now()
	r, intents := rotating(t, &now)
	s := r.Ring.store
	stranger := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}, Spec: v1alpha1.BpfIntentSpec{Envelope: seals.New(t).Seal(t, payloads()[2])}}
	if err := s.Client.Create(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client.Delete(context.Background(), stranger) })
	alone, err := intent.NewTrust(r.Ring.Keys().Sealer.Public())
	if err != nil {
		t.Fatal(err)
	}
	// old counts what the new key alone does not open; agents open all of it.
	old := func() (old int) {
		t.Helper()
		_, agents := load(t, s)
		for _, o := range intents() {
			if o.Name == stranger.Name {
				continue
			}
			if _, err := alone.Open(o.Spec.Envelope); err != nil {
				old++
			}
			opens(t, "agents, of "+o.Name, agents, o.Spec.Envelope)
		}
		return old
	}
	step := func() {
		t.Helper()
		if err := r.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{3, 1, 0} {
		step()
		if n := old(); n != want {
			t.Fatalf("%d intents are left, want %d", n, want)
		}
		if !r.Ring.Keys().Former {
			t.Fatal("the former key is gone before its time")
		}
	}
	for _, want := range payloads() {
		for _, o := range intents() {
			if o.Name != want.UID {
				continue
			}
			got, err := alone.Open(o.Spec.Envelope)
			if err != nil {
				t.Fatal(err)
			}
			want.Format = intent.FormatVersion
			if d := cmp.Diff(want, got.WithEvidence()); d != "" {
				t.Errorf("%s says something else (-want +got):\n%s", o.Name, d)
			}
		}
	}
	step()
	now = now.Add(9 * time.Minute)
	step()
	if !r.Ring.Keys().Former {
		t.Fatal("the former key is gone before every agent has the new seals")
	}
	now = now.Add(2 * time.Minute)
	step()
	if n := old(); r.Ring.Keys().Former || n != 0 {
		t.Errorf("the former key stays: %v; %d intents are left", r.Ring.Keys().Former, n)
	}
	_, agents := load(t, s)
	if d := cmp.Diff(fmt.Sprint(agents), fmt.Sprint(alone)); d != "" {
		t.Errorf("agents trust something else than the new key (-have +want):\n%s", d)
	}
}

func TestAnIntentOfTheFormerKeyThatComesLateKeepsIt(t *testing.T) {
	now := time.Now()
	r, intents := rotating(t, &now)
	r.Batch = 0
	late := intents()[0]
	for range 2 {
		if err := r.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// Such as from a backup of etcd.
	for _, o := range intents() {
		if o.Name == late.Name {
			o.Spec = late.Spec
			if err := r.Client.Update(t.Context(), &o); err != nil {
				t.Fatal(err)
			}
		}
	}
	now = now.Add(11 * time.Minute)
	for range 2 {
		if err := r.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !r.Ring.Keys().Former {
			t.Fatal("the former key is gone though an intent was sealed with it just now")
		}
	}
	now = now.Add(11 * time.Minute)
	if err := r.Step(t.Context()); err != nil || r.Ring.Keys().Former {
		t.Errorf("the former key stays: %v", err)
	}
}
