package hooks_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// onceAtLoad is an attachment of a program that runs once.
func onceAtLoad() v1alpha1.Attachment { return v1alpha1.Attachment{Hook: "syscall"} }

// returning is an intent for a version whose program returns a number.
func returning(w *world.World, version, n int) intent.Payload {
	p := world.Version(w, fmt.Sprint(version), onceAtLoad())
	p.Variables["ran_with"] = apiextensionsv1.JSON{Raw: fmt.Append(nil, n)}
	return p
}

// runningOnce is an intent for another program of hooks.o that runs once.
func runningOnce(w *world.World, program string) intent.Payload {
	p := world.Version(w, "1", onceAtLoad())
	p.Application.Name, p.UID, p.Programs[0].Name = program, "uid-"+program, program
	return p
}

// forgetRun sets what the program noted when it ran to 0.
func forgetRun(t *testing.T, a *agent.Agent) {
	t.Helper()
	bss := world.Globals(t, a.Status()[0].Programs[0].ID)
	defer func() { _ = bss.Close() }()
	if err := bss.Put(uint32(0), make([]byte, bss.ValueSize())); err != nil {
		t.Fatal(err)
	}
}

// TestAProgramThatRunsOnceFiresForEachVersion takes a program that is attached to nothing through a
// life, as TestEveryHookConforms does with the others.
func TestAProgramThatRunsOnceFiresForEachVersion(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "syscall")
	w := world.New(t)
	a, stop := w.Start()
	ran := func(sentence string, version uint32) {
		t.Helper()
		if err := w.Accept(a); err != nil {
			t.Fatal(err)
		}
		program, l := world.One(t, a)
		if l.State != agent.Ran || l.ID != 0 || program.ID == 0 {
			t.Errorf("%s: the status is %+v", sentence, program)
		}
		if got := lastRun(t, a); got != version {
			t.Errorf("%s: version %d ran last, want %d", sentence, got, version)
		}
	}
	if err := w.Accept(a, returning(w, 1, 0)); err != nil {
		t.Fatal(err)
	}
	ran("the first version", 1)
	forgetRun(t, a)
	ran("another reconcile", 0)
	stop()
	a, _ = w.Start()
	ran("a restart", 0)
	if err := w.Accept(a, returning(w, 2, 7)); err != nil {
		t.Fatal(err)
	}
	ran("the next version, which returns more than 0", 2)
	world.UnloadsAll(t, w, a, agent.LinkStatus{})
	if !t.Failed() {
		h, _ := hook.Lookup("syscall")
		conforms(t, h, conformance.Fires)
	}
}

func TestAVersionWhoseProgramFailsIsNotLoaded(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "syscall")
	w := world.New(t)
	a, stop := w.Start()
	if err := w.Accept(a, returning(w, 1, 0)); err != nil {
		t.Fatal(err)
	}
	runs, _ := world.One(t, a)
	const meaning = "; a program of hook syscall returns 0 or more if it did what it is for"
	for want, fails := range map[string]func() intent.Payload{
		"run on_syscall once: it returned -2 (no such file or directory), and so failed" + meaning: func() intent.Payload { return returning(w, 2, -2) },
		// What a program says is not what the kernel denies this process.
		"run on_syscall once: it returned -1 (operation not permitted), and so failed" + meaning:  func() intent.Payload { return returning(w, 2, -1) },
		"invalid argument; it may read arguments, which Skep gives none: put them into variables": func() intent.Payload { return runningOnce(w, "on_syscall_with") },
	} {
		if err := w.Accept(a, fails()); err == nil || !strings.Contains(err.Error()+"\n", want+"\n") {
			t.Errorf("the agent says %v, not %q", err, want)
		}
	}
	for _, s := range a.Status() {
		if len(s.Programs) == 1 && s.Programs[0].Name == "on_syscall" && s.Programs[0].ID != runs.ID {
			t.Errorf("program %d runs in the place of %d", s.Programs[0].ID, runs.ID)
		}
	}
	if _, err := info(runs.ID); err != nil {
		t.Errorf("the version before is gone: %v", err)
	}
	stop()
	a, _ = w.Start()
	if err := w.Accept(a); err == nil {
		t.Error("the version that fails is loaded after a restart")
	}
	if _, err := info(runs.ID); err != nil {
		t.Errorf("the version before is gone after a restart: %v", err)
	}
	for _, s := range a.Status() {
		if s.Application.Name == "hooks" && (s.Conditions[0].Reason != "KeptPrevious" || len(s.Programs) != 1 || s.Programs[0].ID != runs.ID) {
			t.Errorf("after a restart the status is %+v", s)
		}
	}
}

// info is what the kernel says of a program.
func info(id uint32) (*ebpf.ProgramInfo, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }()
	return program.Info()
}

func TestAProgramWhoseSectionSaysOfNoTypeRunsOnce(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "syscall")
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, runningOnce(w, "on_syscall_unnamed")); err != nil {
		t.Fatal(err)
	}
	if got := lastRun(t, a); got != 1 {
		t.Errorf("version %d ran last", got)
	}
}

// TestTheVerifierWalksWhatRunsOnce has two functions that are not static loop 30 times each, one
// within the other: the verifier would look at each apart, and see 60 rounds of 900.
func TestTheVerifierWalksWhatRunsOnce(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "syscall")
	w := world.New(t)
	a, _ := w.Start()
	if err := w.Accept(a, runningOnce(w, "on_syscall_nested")); err != nil {
		t.Fatal(err)
	}
	shown, err := info(a.Status()[0].Programs[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := shown.VerifiedInstructions(); ok && n < 2*900 {
		t.Errorf("the verifier walked %d instructions", n)
	}
}
