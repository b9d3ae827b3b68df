package agent_test

import (
	"os"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// inBinary is an intent for one program of functions.o on a binary.
func inBinary(w *world.World, version, program, hook string, b v1alpha1.UserBinary) intent.Payload {
	p := world.Version(w, version, v1alpha1.Attachment{Hook: hook, Binary: &b})
	p.ObjectDigest, p.Programs[0].Name = w.Object(world.FunctionsObject), program
	return p
}

func TestOneLinkFiresForManyFunctions(t *testing.T) {
	need.Kernel(t)
	for hook, program := range map[string]string{"uprobe.multi": "on_entry", "uretprobe.multi": "on_return"} {
		t.Run(hook, func(t *testing.T) {
			world.NeedHook(t, hook)
			w := world.New(t)
			a, _ := w.Start()
			path := world.Install(t, userbinary.Make(world.Workers(), userbinary.Options{}))
			b := v1alpha1.UserBinary{Path: path, Symbols: &v1alpha1.Symbols{Names: []string{"work_*", "other"}, Exclude: []string{"*_never"},
				Limit: world.Ptr[int32](3)}}
			if err := w.Accept(a, inBinary(w, "1", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			_, l := world.One(t, a)
			if want := path + ":work_* other !*_never <=3"; l.Target != want {
				t.Errorf("the link is on %q, want %q", l.Target, want)
			}
			ran := func() uint64 { return world.Word(world.Section(w, a, "%2ebss")) }
			world.Execute(t, path)
			if got := ran(); got != 3 {
				t.Errorf("the program ran %d times for three functions", got)
			}
			if err := w.Accept(a, inBinary(w, "1000", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			world.Execute(t, path)
			if got := ran(); got != 3003 {
				t.Errorf("after the update it counted %d", got)
			}
			// One function less is another target, with a link of its own.
			b.Symbols = &v1alpha1.Symbols{Names: []string{"work_one"}}
			if err := w.Accept(a, inBinary(w, "1000", program, hook, b)); err != nil {
				t.Fatal(err)
			}
			_, now := world.One(t, a)
			world.Until(t, "the link of the former choice to go", time.Minute, func() bool { return world.Runs(t, l.ID) == 0 })
			// The kernel forgets the number of a link before it ends it.
			a.AwaitClosings()
			world.Execute(t, path)
			if got := ran(); got != 4003 || now.ID == l.ID {
				t.Errorf("for one function it counted %d under link %d, which was %d", got, now.ID, l.ID)
			}
		})
	}
}

// TestABinaryThatIsRewrittenInItsPlaceIsReadAgain: the file is the same one, and its
// functions lie elsewhere.
func TestABinaryThatIsRewrittenInItsPlaceIsReadAgain(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "uprobe.multi")
	w := world.New(t)
	a, _ := w.Start()
	path := world.Install(t, userbinary.Make(world.Workers(), userbinary.Options{}))
	b := v1alpha1.UserBinary{Path: path, Symbols: &v1alpha1.Symbols{Names: []string{"work_*"}}}
	if err := w.Accept(a, inBinary(w, "1", "on_entry", "uprobe.multi", b)); err != nil {
		t.Fatal(err)
	}
	_, first := world.One(t, a)
	moved := append([]userbinary.Function{{Name: "work_more", Code: []byte{0x90}}}, world.Workers()...)
	if err := os.WriteFile(path, userbinary.Make(moved, userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	world.Until(t, "the functions to be found again", time.Minute, func() bool {
		_, l := world.One(t, a)
		return l.ID != first.ID && l.State == agent.Attached && world.Runs(t, first.ID) == 0
	})
	// The kernel forgets the number of a link before it ends it.
	a.AwaitClosings()
	before := world.Word(world.Section(w, a, "%2ebss"))
	world.Execute(t, path)
	if got := world.Word(world.Section(w, a, "%2ebss")) - before; got != 4 {
		t.Errorf("the program ran %d times for four functions", got)
	}
}
