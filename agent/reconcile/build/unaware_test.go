package build

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// TestARevisionOfManyMembersIsPreparedOnce where it is asked which of them take no packets of several buffers.
func TestARevisionOfManyMembersIsPreparedOnce(t *testing.T) {
	dir, sum := t.TempDir(), sha256.Sum256([]byte("object"))
	digest := hex.EncodeToString(sum[:])
	if err := os.WriteFile(filepath.Join(dir, digest), []byte("object"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := objects.New(objects.Options{Dir: dir})
	defer files.Close()
	o := seals.New(t).Open(t, intent.Payload{
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, UID: "u", Serial: 1,
		ImageDigest: "sha256:image", ObjectDigest: "sha256:" + digest,
		Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: plan.XDP, Interfaces: &v1alpha1.Interfaces{Names: []string{"cn0"}}}}}},
	})
	var parts []Part
	for _, revision := range []string{"1", "1", "2", "1", "2"} {
		parts = append(parts, Part{Member: plan.Member{UID: "u", Revision: revision, Program: "f"}, Intent: o})
	}
	times := 0
	members, err := unaware(parts, files, func(intent.Opened, []byte) (*loader.Prepared, error) {
		times++
		return &loader.Prepared{Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{plan.Instance("f", plan.XDP, ""): {}}}}, nil
	})
	if err != nil || len(members) != len(parts) || times != 2 {
		t.Errorf("%d members (%v), and %d preparations", len(members), err, times)
	}
}
