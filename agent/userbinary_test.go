package agent_test

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/harness/need"
)

//go:embed testdata/functions.o
var functionsObject []byte

// workers are the functions of a binary: three begin with work_.
func workers() []userbinary.Function {
	nop := []byte{0x90, 0x90, 0x90, 0x90}
	return []userbinary.Function{{Name: "work_one", Code: nop}, {Name: "work_two", Code: nop}, {Name: "work_never", Code: nop}, {Name: "other", Code: nop}}
}

// install writes a binary that can be run.
func install(t testing.TB, body []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, body, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// execute runs a binary of package userbinary, on a machine that can.
func execute(t testing.TB, path string) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the binary is one of x86-64")
	}
	if out, err := exec.CommandContext(t.Context(), path).CombinedOutput(); err != nil {
		t.Fatalf("run the binary: %v: %s", err, out)
	}
}

// inBinary is an intent for one program of functions.o on a binary.
func (w *world) inBinary(version, program, hook string, b v1alpha1.UserBinary) intent.Payload {
	p := w.version(version, v1alpha1.Attachment{Hook: hook, Binary: &b})
	p.ObjectDigest, p.Programs[0].Name = w.object(functionsObject), program
	return p
}

func TestOneLinkFiresForManyFunctions(t *testing.T) {
	need.Kernel(t)
	for hook, program := range map[string]string{"uprobe.multi": "on_entry", "uretprobe.multi": "on_return"} {
		t.Run(hook, func(t *testing.T) {
			needHook(t, hook)
			w := newWorld(t)
			a, _ := w.start()
			path := install(t, userbinary.Make(workers(), userbinary.Options{}))
			b := v1alpha1.UserBinary{Path: path, Symbols: &v1alpha1.Symbols{Names: []string{"work_*", "other"}, Exclude: []string{"*_never"}, Limit: ptr[int32](3)}}
			if err := w.accept(a, w.inBinary("1", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			_, l := one(t, a)
			if want := path + ":work_* other !*_never <=3"; l.Target != want {
				t.Errorf("the link is on %q, want %q", l.Target, want)
			}
			ran := func() uint64 { return word(w.section(a, "%2ebss")) }
			execute(t, path)
			if got := ran(); got != 3 {
				t.Errorf("the program ran %d times for three functions", got)
			}
			if err := w.accept(a, w.inBinary("1000", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			execute(t, path)
			if got := ran(); got != 3003 {
				t.Errorf("after the update it counted %d", got)
			}
			// One function less is another target, with a link of its own.
			b.Symbols = &v1alpha1.Symbols{Names: []string{"work_one"}}
			if err := w.accept(a, w.inBinary("1000", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			_, now := one(t, a)
			until(t, "the link of the former choice to go", time.Minute, func() bool { return runs(t, l.ID) == 0 })
			// The kernel forgets the number of a link before it ends it.
			a.AwaitClosings()
			execute(t, path)
			if got := ran(); got != 4003 || now.ID == l.ID {
				t.Errorf("for one function it counted %d under link %d, which was %d", got, now.ID, l.ID)
			}
		})
	}
}

func TestWhatIsNotThereOfABinaryOrProcessIsNamed(t *testing.T) {
	need.Kernel(t)
	needHook(t, "uprobe.multi")
	for sentence, c := range map[string]struct {
		hook   string
		binary v1alpha1.UserBinary
		want   string
	}{
		"a name": {"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*", "work_tow"}}},
			"function work_tow: not found; near it are work_two"},
		"a glob": {"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"othr*"}}}, "function othr*: not found; near it are other"},
		"too many": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}, Limit: ptr[int32](2)}}, "more than 2 functions are chosen",
		},
		"none": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}, Exclude: []string{"*"}}}, "exclude takes away every function",
		},
		"of a uprobe": {"uprobe", v1alpha1.UserBinary{Symbol: "Other"}, "look for symbol Other: not found; near it are other"},
		// Beyond PID_MAX_LIMIT of include/linux/threads.h, there is none.
		"of a process that ended": {
			"uprobe", v1alpha1.UserBinary{Symbol: "work_one", PID: 1 << 23}, "find process 8388608: target does not exist: no such process",
		},
		"many of a process that ended": {
			"uprobe.multi", v1alpha1.UserBinary{Symbols: &v1alpha1.Symbols{Names: []string{"work_one"}}, PID: 1 << 23}, "find process 8388608: target does not exist",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.start()
			c.binary.Path = install(t, userbinary.Make(workers(), userbinary.Options{}))
			p := w.version("1", v1alpha1.Attachment{Hook: c.hook, Binary: &c.binary})
			if err := w.accept(a, p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("accept = %v, want %q", err, c.want)
			}
			if _, l := one(t, a); l.State != agent.Failed {
				t.Errorf("link = %+v", l)
			}
		})
	}
}

// TestABinaryThatIsRewrittenInItsPlaceIsReadAgain: the file is the same one, and its
// functions lie elsewhere.
func TestABinaryThatIsRewrittenInItsPlaceIsReadAgain(t *testing.T) {
	need.Kernel(t)
	needHook(t, "uprobe.multi")
	w := newWorld(t)
	a, _ := w.start()
	path := install(t, userbinary.Make(workers(), userbinary.Options{}))
	b := v1alpha1.UserBinary{Path: path, Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}}}
	if err := w.accept(a, w.inBinary("1", "on_entry", "uprobe.multi", b)); err != nil {
		t.Fatal(err)
	}
	_, first := one(t, a)
	moved := append([]userbinary.Function{{Name: "work_more", Code: []byte{0x90}}}, workers()...)
	if err := os.WriteFile(path, userbinary.Make(moved, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	until(t, "the functions to be found again", time.Minute, func() bool {
		_, l := one(t, a)
		return l.ID != first.ID && l.State == agent.Attached && runs(t, first.ID) == 0
	})
	// The kernel forgets the number of a link before it ends it.
	a.AwaitClosings()
	before := word(w.section(a, "%2ebss"))
	execute(t, path)
	if got := word(w.section(a, "%2ebss")) - before; got != 4 {
		t.Errorf("the program ran %d times for four functions", got)
	}
}
