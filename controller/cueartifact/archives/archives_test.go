package archives

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestAnAddressOfAPodHasThePortThatIsServed(t *testing.T) {
	for o, want := range map[Options]string{
		{Address: ":9790", Advertised: "10.0.0.7"}:      "10.0.0.7:9790",
		{Address: ":9790", Advertised: "fd00::7"}:       "[fd00::7]:9790",
		{Address: ":9790", Advertised: "10.0.0.7:80"}:   "10.0.0.7:80",
		{Address: ":9790", Advertised: "artifacts.svc"}: "artifacts.svc",
		{Address: ":9790"}:                              "",
	} {
		if got := o.advertised(); got != want {
			t.Errorf("%+v is advertised as %q, want %q", o, got, want)
		}
	}
}

// cueArtifact is one of a name.
func cueArtifact(namespace, name string) *v1alpha1.CueArtifact {
	return &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// put stores content for a CueArtifact, which cannot be compressed.
func put(t *testing.T, s *Store, namespace, name string, size int) (meta.Artifact, error) {
	t.Helper()
	content := make([]byte, size)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return s.Put(cueArtifact(namespace, name), "main@sha1:1", content, hex.EncodeToString(sum[:]))
}

func TestANamespaceLeavesOthersRoom(t *testing.T) {
	s, err := New(Options{Dir: t.TempDir(), Address: ":9790", MaxBytes: 100 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, s, "team-a", "one", 30<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, s, "team-a", "two", 30<<10); err == nil || !strings.Contains(err.Error(), "share of one namespace") ||
		!strings.Contains(err.Error(), "--artifact-storage-size") {
		t.Errorf("more than its share: %v", err)
	}
	if _, err := put(t, s, "team-b", "one", 30<<10); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	for i := range maxOfNamespace {
		dir := filepath.Join(s.root(), "team-c", fmt.Sprint(i))
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "x.tar.gz"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := put(t, s, "team-c", "one", 1); err == nil || !strings.Contains(err.Error(), "team-c has 2000 artifacts") {
		t.Errorf("more archives than its share: %v", err)
	}
}

// TestTwoNamespacesLeaveOthersRoom has two namespaces store all that they may, each in many steps at once.
func TestTwoNamespacesLeaveOthersRoom(t *testing.T) {
	const room = 64 << 10
	s, err := New(Options{Dir: t.TempDir(), Address: ":9790", MaxBytes: room})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := range 64 {
		for _, namespace := range []string{"team-a", "team-b"} {
			wait.Go(func() {
				if _, err := put(t, s, namespace, fmt.Sprint(i), 2<<10); err != nil && !strings.Contains(err.Error(), "share of") {
					t.Error(err)
				}
			})
		}
	}
	wait.Wait()
	all, err := used(s.root())
	if err != nil || all.bytes > room*3/4+1<<10 || all.bytes < room/2 {
		t.Errorf("two namespaces have %d bytes of %d (%v), want three quarters", all.bytes, room, err)
	}
	if _, err := put(t, s, "team-c", "one", room/64-256); err != nil {
		t.Errorf("a third namespace: %v", err)
	}
	if _, err := put(t, s, "team-c", "two", room/64); err == nil || !strings.Contains(err.Error(), "the last quarter") {
		t.Errorf("more than the reserve of a namespace: %v", err)
	}
}

func TestASweepLeavesWhatIsUsed(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Options{Dir: dir, Address: ":9790"})
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, scratchDir, "left")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	used, remove, err := s.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	gone, err := put(t, s, "team", "gone", 10)
	if err != nil {
		t.Fatal(err)
	}
	var meanwhile meta.Artifact
	if err := s.Sweep(func() (map[types.NamespacedName]bool, error) {
		meanwhile, err = put(t, s, "team", "meanwhile", 10)
		return nil, err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a former process rendered is there still: %v", err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Errorf("what is being rendered: %v", err)
	}
	if s.Has(&gone) || !s.Has(&meanwhile) {
		t.Errorf("one that is gone is stored: %t, one that came meanwhile: %t", s.Has(&gone), s.Has(&meanwhile))
	}
	if remove(); len(s.scratch) != 0 {
		t.Errorf("%v is remembered", s.scratch)
	}
	if _, err := os.Stat(used); !os.IsNotExist(err) {
		t.Errorf("what was rendered is there still: %v", err)
	}
}
