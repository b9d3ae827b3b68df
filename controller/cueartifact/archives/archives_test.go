package archives

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// of is a CueArtifact of a namespace.
func of(namespace string) *v1alpha1.CueArtifact {
	return &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "apps"}}
}

func TestANamespaceFillsItsShareAlone(t *testing.T) {
	s, err := New(Options{Dir: t.TempDir(), Address: ":9790", MaxBytes: 4000})
	if err != nil {
		t.Fatal(err)
	}
	content := []byte(strings.Repeat("a", 900))
	if _, err := s.Put(of("a"), "main@sha1:1", content, strings.Repeat("0", 64)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(of("a"), "main@sha1:2", content, strings.Repeat("1", 64)); err == nil || !strings.Contains(err.Error(), "namespace a have") {
		t.Errorf("over its share: %v", err)
	}
	if _, err := s.Put(of("b"), "main@sha1:1", content, strings.Repeat("0", 64)); err != nil {
		t.Errorf("another namespace: %v", err)
	}
}

func TestASweepLeavesWhatIsBeingRendered(t *testing.T) {
	dir := t.TempDir()
	former, err := New(Options{Dir: dir, Address: ":9790"})
	if err != nil {
		t.Fatal(err)
	}
	left, err := former.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Dir: dir, Address: ":9790"})
	if err != nil {
		t.Fatal(err)
	}
	mine, err := s.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"a", "b"} {
		if _, err := s.Put(of(ns), "main@sha1:1", []byte("x"), strings.Repeat("0", 64)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(map[types.NamespacedName]bool{{Namespace: "a", Name: "apps"}: true}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{mine: true, left: false, filepath.Join(s.root(), "a", "apps"): true, filepath.Join(s.root(), "b", "apps"): false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

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
