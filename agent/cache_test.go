package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func digestOf(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestTheCacheKeepsIntentsAndWhatRuns(t *testing.T) {
	c, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	read := func() map[string]string {
		t.Helper()
		all, err := c.intents()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, k := range all {
			out[filepath.Base(k.path)] = string(k.envelope)
		}
		return out
	}
	want := func(files map[string]string) {
		t.Helper()
		got := read()
		for name, body := range files {
			if got[name] != body {
				t.Errorf("%s = %q, want %q", name, got[name], body)
			}
		}
		if len(got) != len(files) {
			t.Errorf("kept %v", got)
		}
	}
	// A uid is any string.
	uid := "ns/../a.b"
	file := "ns%2F..%2Fa.b"
	if err := c.putIntent(uid, newest, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := c.putIntent(uid, deployed, []byte("one")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "one", file + ".deployed": "one"})
	if err := c.putIntent(uid, newest, []byte("two")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "two", file + ".deployed": "one"})
	if err := c.putIntent(uid, deployed, []byte("two")); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{file + ".newest": "two", file + ".deployed": "two"})
	for range 2 {
		if err := c.dropIntent(uid, deployed); err != nil {
			t.Fatal(err)
		}
	}
	want(map[string]string{file + ".newest": "two"})
	// What a killed agent was writing is swept away.
	for _, leftover := range []string{".new-123", file + ".linking"} {
		if err := os.WriteFile(filepath.Join(c.dir, "intents", leftover), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want(map[string]string{file + ".newest": "two"})
	if entries, err := os.ReadDir(filepath.Join(c.dir, "intents")); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestTheCacheBelievesNoObjectItDidNotHash(t *testing.T) {
	c, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	digest := digestOf("object")
	if got, err := c.object(digest); !errors.Is(err, errFetching) || c.has(digest) {
		t.Errorf("an empty cache has %q (%v)", got, err)
	}
	if err := c.putObject(digest, []byte("object")); err != nil {
		t.Fatal(err)
	}
	if got, err := c.object(digest); string(got) != "object" || err != nil || !c.has(digest) {
		t.Errorf("object = %q, %v", got, err)
	}
	if err := os.WriteFile(c.objectPath(digest), []byte("altered"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.object(digest); !errors.Is(err, errFetching) || c.has(digest) {
		t.Errorf("an altered object is given out, or left: %q (%v)", got, err)
	}
	// No digest leads out of the cache.
	outside := filepath.Join(c.dir, "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.object("sha256:../secret"); err == nil {
		t.Errorf("read %q from outside", got)
	}
	if path := c.objectPath("sha256:../../etc/passwd"); filepath.Dir(path) != c.sub("objects") {
		t.Errorf("path is %s", path)
	}
}

func TestObjectsThatNoIntentNamesAreDropped(t *testing.T) {
	c, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"a", "b", "c"} {
		if err := c.putObject(digestOf(body), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	// A fetch that runs beside it, and what a killed agent was writing.
	writing := filepath.Join(c.dir, "objects", ".new-123")
	if err := os.WriteFile(writing, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.prune(map[string]bool{digestOf("b"): true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("the file of a running fetch: %v", err)
	}
	if _, err := openCache(c.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(writing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a leftover: %v", err)
	}
	for body, there := range map[string]bool{"a": false, "b": true, "c": false} {
		if c.has(digestOf(body)) != there {
			t.Errorf("object %s is there: %v", body, !there)
		}
	}
}

func TestAFullDiskLosesNothingThatWasKept(t *testing.T) {
	dir := t.TempDir()
	c, err := openCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.putIntent("uid", newest, []byte("one")); err != nil {
		t.Fatal(err)
	}
	// A directory in the file's place fails the rename as a full disk fails the
	// write: the new one is not there, and no leftover is.
	if err := os.MkdirAll(filepath.Join(dir, "intents", "other.newest", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.putIntent("other", newest, []byte("two")); err == nil || !strings.Contains(err.Error(), "keep intent") {
		t.Errorf("putIntent = %v", err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "intents"))
	if err != nil || len(entries) != 2 {
		t.Errorf("entries = %v, %v", entries, err)
	}
	if _, err := openCache("/proc/nope"); err == nil || !strings.Contains(err.Error(), "make state directory") {
		t.Errorf("openCache where nothing can be made = %v", err)
	}
}

func TestAnotherMountInTheSameBootIsTold(t *testing.T) {
	c, err := openCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		boot   string
		device uint64
		want   bool
	}{{"one\n", 7, false}, {"one\n", 7, false}, {"one\n", 8, true}, {"one\n", 8, false}, {"two\n", 9, false}, {"two\n", 7, true}} {
		if got, err := c.noteMount(step.boot, step.device); got != step.want || err != nil {
			t.Errorf("step %d: %v, %v", i, got, err)
		}
	}
}

func TestBackOffDoublesUpToItsMost(t *testing.T) {
	b := BackOff{First: time.Second, Most: 10 * time.Second}
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 1000: 10 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 50 {
			got := b.after(failures)
			seen[got] = true
			if got < want || got > want+want/4 {
				t.Errorf("after %d failures: %v, want %v and up to a quarter", failures, got, want)
			}
		}
		if len(seen) < 2 {
			t.Errorf("after %d failures: no jitter", failures)
		}
	}
}

func TestCgroup2IsFoundWhereItIsMounted(t *testing.T) {
	root, err := findCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	// Only the root of a cgroup2 file system has the file; see cgroups(7).
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Errorf("%s: %v", root, err)
	}
}

func TestSelectorsMatchLabels(t *testing.T) {
	node := map[string]string{"role": "edge", "zone": "a"}
	for sentence, c := range map[string]struct {
		selector metav1.LabelSelector
		want     bool
		err      bool
	}{
		"all labels match":        {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "a"}}, true, false},
		"one does not":            {metav1.LabelSelector{MatchLabels: map[string]string{"role": "edge", "zone": "b"}}, false, false},
		"an empty one takes all":  {metav1.LabelSelector{}, true, false},
		"an expression":           {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}}, true, false},
		"an unknown operator":     {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}, false, true},
		"a label it does not own": {metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: metav1.LabelSelectorOpExists}}}, false, false},
	} {
		got, err := matchLabels(&c.selector, node)
		if got != c.want || (err != nil) != c.err {
			t.Errorf("%s: %v, %v", sentence, got, err)
		}
	}
}

func TestNewcomersAreToldFromWhoRuns(t *testing.T) {
	m := func(uid, revision string) plan.Member {
		return plan.Member{UID: uid, Identity: v1alpha1.Identity{Name: uid}, Revision: revision, Program: "f"}
	}
	running := []plan.Member{m("a", "1"), m("b", "1")}
	all := []plan.Member{m("c", "1"), m("a", "1"), m("b", "2"), m("c", "2")}
	if got := newcomersOf(all, running); !slices.Equal(got, []string{"c", "b"}) {
		t.Errorf("newcomersOf = %v", got)
	}
	if got := without(all, []string{"c"}); len(got) != 2 || got[0].UID != "a" || len(all) != 4 {
		t.Errorf("without = %v", got)
	}
	moved := m("a", "1")
	moved.Priority, moved.ProceedOn = 7, 3
	if isNew(moved, running) {
		t.Error("a new priority makes a newcomer")
	}
	if got := memberKeys([]plan.Member{m("a", "1"), {UID: "a2", Identity: v1alpha1.Identity{Name: "a"}, Program: "f"}, m("b", "1")}); !slices.Equal(got, []string{"a f (a)", "a f (a2)", "b f"}) {
		t.Errorf("memberKeys = %v", got)
	}
}

func TestSelectionsAndTargetsAreSaidInWords(t *testing.T) {
	for want, at := range map[string]v1alpha1.Attachment{
		"names eth*, lo, without lo": {Interfaces: &v1alpha1.Interfaces{Names: []string{"eth*", "lo"}, Exclude: []string{"lo"}}},
		"primary":                    {Interfaces: &v1alpha1.Interfaces{Primary: true}},
		"sched/switch":               {Tracepoint: "sched/switch"},
		"/pods":                      {Cgroup: "/pods"},
		"/bin/sh":                    {Binary: &v1alpha1.UserBinary{Path: "/bin/sh"}},
		"/run/netns/x":               {NetworkNamespace: "/run/netns/x"},
	} {
		if got := describeTarget(at); got != want {
			t.Errorf("sayTarget = %q, want %q", got, want)
		}
	}
}

// TestAStateFolderOfOthersIsNotUsed, and one that is open to others is closed to them.
func TestAStateFolderOfOthersIsNotUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a folder of another user")
	}
	theirs, ours := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "state")
	for _, dir := range []string{theirs, ours} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(theirs, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := openCache(theirs); !errors.Is(err, kernel.ErrExposed) || !strings.Contains(err.Error(), "uid 1000") {
		t.Errorf("a folder of another user: %v", err)
	}
	if _, err := openCache(ours); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(ours); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a folder that was open to others is %v, %v", info, err)
	}
}
