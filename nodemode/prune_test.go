package nodemode

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/nodemode/diskmemory"
	"github.com/skep-dev/skep/test/fixture/gitrepo"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// blobs is where a host caches what came from registries.
func (s *stage) blobs() string { return filepath.Join(s.state, "bytecode", "blobs", "sha256") }

// lay puts a file without content of some size into a folder, last used some time ago.
func lay(t *testing.T, path string, size int64, ago time.Duration) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Chtimes(path, time.Time{}, time.Now().Add(-ago))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestACacheBeyondItsBoundIsPrunedSoon fills the cache with what was used a moment ago.
func TestACacheBeyondItsBoundIsPrunedSoon(t *testing.T) {
	s := newStage(t)
	stray := filepath.Join(s.blobs(), strings.Repeat("a", 64))
	lay(t, stray, cacheBytes+1, 0)
	h := s.open(func(o *Options) { o.DryRun = true })
	s.pass(h)
	if !exists(stray) {
		t.Fatal("what was used a moment ago was pruned")
	}
	lay(t, stray, cacheBytes+1, 2*cacheSpares)
	s.now = s.now.Add(pruneSoon)
	if s.pass(h); exists(stray) {
		t.Errorf("after %s, a cache beyond its bound is not pruned", pruneSoon)
	}
}

// TestAFullCacheKeepsNobodysProgramOut has the cache take nothing.
func TestAFullCacheKeepsNobodysProgramOut(t *testing.T) {
	s := newStage(t)
	lay(t, filepath.Join(s.blobs(), strings.Repeat("a", 64)), maxCacheBytes, 0)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: yesPlease})
	kept := 0
	err := filepath.WalkDir(s.blobs(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			kept++
		}
		return err
	})
	if err != nil || kept != 1 {
		t.Errorf("the full cache holds %d blobs (%v), want the one that fills it", kept, err)
	}
}

// TestAnObjectIsExpandedWithinTheGatesBounds has a small layer expand to more than
// anybody inspects.
func TestAnObjectIsExpandedWithinTheGatesBounds(t *testing.T) {
	s := newStage(t)
	built, err := image.Build(append(bytes.Clone(programs.Object("tracepoint_count")), make([]byte, 17<<20)...), image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ref := s.registry + "/bpf/large:v1"
	if _, err := s.client.Push(t.Context(), ref, built); err != nil {
		t.Fatal(err)
	}
	s.define("large", ref)
	h := s.open(func(o *Options) { o.DryRun = true })
	wantConditions(t, s.pass(h)["large"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
	if n := h.images.Cache().Bytes(); n > 1<<20 {
		t.Errorf("the cache holds %d bytes of it", n)
	}
}

func TestOldSignaturesAreNotKept(t *testing.T) {
	dir := t.TempDir()
	m := &diskmemory.Memory{Dir: dir, MaxBytes: 1 << 30}
	name := func(what string) string { return filepath.Join(dir, "signatures.0123456789abcdef-sha256:"+what) }
	for i, what := range []string{"oldest", "older", "active", "newer", "newest"} {
		lay(t, name(what), 100, time.Duration(10-i)*time.Minute)
	}
	lay(t, name("stale"), 1, staleFor+time.Minute)
	lay(t, name("stale-and-active"), 1, staleFor+time.Minute)
	lay(t, filepath.Join(dir, ".new-1"), 1, staleFor+time.Minute)
	keep := func(digest string) bool { return digest == "sha256:active" }
	if err := m.Prune(300, staleFor, keep); err != nil {
		t.Fatal(err)
	}
	left := gitrepo.Content(t, dir)
	for what, want := range map[string]bool{"oldest": false, "older": false, "active": true, "newer": true, "newest": true, "stale": false} {
		if _, is := left[filepath.Base(name(what))]; is != want {
			t.Errorf("%s is kept: %v, want %v", what, is, want)
		}
	}
	if len(left) != 3 || m.Held() != 300 {
		t.Errorf("%d files are left, counted as %d bytes", len(left), m.Held())
	}
	// Without room, nothing is kept.
	m.MaxBytes = 350
	if err := m.Store("signatures.x-sha256:much", make([]byte, 51)); err != nil || exists(name("much")) || m.Held() != 300 {
		t.Errorf("beyond the bound: %v, %d bytes", err, m.Held())
	}
	if err := m.Store("signatures.x-sha256:little", make([]byte, 50)); err != nil || len(gitrepo.Content(t, dir)) != 4 {
		t.Errorf("within the bound: %v", err)
	}
}

// TestSignaturesOfWhatIsGoneLeaveTheDisk evaluates once, and looks a day later.
func TestSignaturesOfWhatIsGoneLeaveTheDisk(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open(func(o *Options) { o.DryRun = true })
	s.pass(h)
	remembered := gitrepo.Content(t, filepath.Join(s.state, "memory"))
	if len(remembered) != 1 {
		t.Fatalf("%d images are remembered, want 1", len(remembered))
	}
	s.define("app", "")
	for name, body := range remembered {
		lay(t, filepath.Join(s.state, "memory", name), int64(len(body)), staleFor+time.Minute)
	}
	s.now = s.now.Add(pruneEvery)
	if s.pass(h); len(gitrepo.Content(t, filepath.Join(s.state, "memory"))) != 0 {
		t.Error("it is remembered for ever")
	}
}

// TestNoTreeIsLeftBehind has a process leave trees that its successor does not use.
// TestTheAgentAsksForNoObjectThatNoIntentNames has neither cache nor intents.
func TestTheAgentAsksForNoObjectThatNoIntentNames(t *testing.T) {
	s := newStage(t)
	h := s.open()
	if _, err := h.object(context.Background(), "sha256:"+strings.Repeat("a", 64)); err == nil || !strings.Contains(err.Error(), "not in the cache") {
		t.Errorf("an object that nothing names: %v", err)
	}
}
