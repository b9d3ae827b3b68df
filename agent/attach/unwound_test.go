package attach

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/userbinary"
)

// TestAReturnProbeLeavesOutWhatIsUnwound looks into binaries as C and C++ compilers make them, and into
// the C library of this machine, which has tables of exceptions and throws none.
func TestAReturnProbeLeavesOutWhatIsUnwound(t *testing.T) {
	work := []userbinary.Function{{Name: "work"}}
	write := func(body []byte) string {
		path := filepath.Join(t.TempDir(), "binary")
		if err := os.WriteFile(path, body, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for sentence, c := range map[string]struct {
		path string
		says string
	}{
		"a program of C":             {write(userbinary.Make(work, userbinary.Options{})), ""},
		"one that throws exceptions": {write(userbinary.Make(work, userbinary.Options{Throws: true})), "exceptions pass through its functions"},
		"what is no binary":          {write([]byte("text")), "look for tables of exceptions"},
	} {
		if err := isUnwound(c.path); (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", sentence, err, c.says)
		}
	}
	library, err := filepath.Glob("/lib/*-linux-gnu/libc.so.6")
	if err != nil || len(library) == 0 {
		t.Skip("SKIPPED: this machine has no C library of Debian's")
	}
	if err := isUnwound(library[0]); err != nil {
		t.Errorf("the C library: %v", err)
	}
}

// TestANamespaceHasNoReturnProbeWhereExceptionsPass reads one binary for both kinds of applications.
func TestANamespaceHasNoReturnProbeWhereExceptionsPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), "throws")
	if err := os.WriteFile(path, userbinary.Make([]userbinary.Function{{Name: "work"}}, userbinary.Options{Throws: true}), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind, hook string
		found      bool
	}{
		{v1alpha1.KindBpfApplication, "uretprobe", false},
		{v1alpha1.KindBpfApplication, "uprobe", true},
		{v1alpha1.KindClusterBpfApplication, "uretprobe", true},
	} {
		target, err := hold("", path)
		if err != nil {
			t.Fatal(err)
		}
		f := &Found{target: target}
		err = f.read(plan.Attachment{Application: v1alpha1.Identity{Kind: c.kind}, Hook: c.hook, Target: plan.Target{Container: "c", Symbol: "work"}})
		if (err == nil) != c.found || err != nil && !errors.Is(err, ErrTarget) {
			t.Errorf("%s of a %s: %v", c.hook, c.kind, err)
		}
		f.Close()
	}
}
