package imagestore

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// newKeys are keys that nobody else has.
func newKeys(t *testing.T) func() sealing.Keys {
	t.Helper()
	key := seals.New(t)
	return func() sealing.Keys { return sealing.Keys{Sealer: key.Sealer, Trust: key.Trust} }
}

func TestAnImageIsKeptForTheReplicasAndNobodyElse(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	of := func(digit string, open bool) (image.Resolved, access.Remembered) {
		r := image.Resolved{Registry: "registry.example.com", Repository: "bpf/app", Digest: "sha256:" + strings.Repeat(digit, 64)}
		return r, access.Remembered{Registry: r.Registry, Repository: r.Repository, Digest: r.Digest, Open: open, Blobs: [][]byte{[]byte("layer " + digit)}}
	}
	asked := 0
	m := &Memory{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Keys: newKeys(t)}
	m.Remember = func(_ context.Context, r image.Resolved, most int) (access.Remembered, bool) {
		asked++
		_, kept := of(r.Digest[7:8], !strings.HasPrefix(r.Digest, "sha256:b"))
		return kept, most == maxBlobs
	}
	open, want := of("a", true)
	packed, err := m.seal(t.Context(), open)
	if err != nil || packed == nil {
		t.Fatalf("%d bytes, %v", len(packed), err)
	}
	if got, ok := m.unseal(packed); !ok || got.Digest != want.Digest || string(got.Blobs[0]) != "layer a" {
		t.Errorf("%+v, %v", got, ok)
	}
	if again, err := m.seal(t.Context(), open); again != nil || err != nil || asked != 1 {
		t.Errorf("it is looked at again: %d times, %v", asked, err)
	}
	if private, err := m.seal(t.Context(), image.Resolved{
		Registry: open.Registry, Repository: open.Repository, Digest: "sha256:" + strings.Repeat("b", 64),
	}); private != nil || err != nil {
		t.Errorf("an image that only a namespace's own credentials open is kept: %v", err)
	}
	stranger := &Memory{Client: m.Client, Keys: newKeys(t)}
	if _, ok := stranger.unseal(packed); ok {
		t.Error("another key's seal is believed")
	}
}

func TestSignaturesStayLongerThanImages(t *testing.T) {
	memory := map[string][]byte{"signatures.a": make([]byte, maxPacked/2), "image.a": make([]byte, maxPacked), "signatures.b": make([]byte, maxPacked)}
	makeRoom(memory, "signatures.b", users{}.charged())
	if memory["image.a"] != nil || memory["signatures.a"] == nil {
		t.Errorf("%d are left, the image: %v", len(memory), memory["image.a"] != nil)
	}
}
