package prepare_test

import (
	"bytes"
	_ "embed"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/userbinary"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

//go:generate go run ../../../test/fixture/programs/compile testdata testdata

//go:embed testdata/choice.o
var choiceObject []byte

// choosing is an intent that leaves to the node what it runs of choice.o.
func choosing(w *world.World, alternatives []v1alpha1.Alternative, programs ...v1alpha1.Program) intent.Payload {
	p := w.Intent("choosing", "xdp_pass", programs...)
	p.ObjectDigest, p.Alternatives = w.Object(choiceObject), alternatives
	return p
}

// alternative is one of sets, each of which is names with spaces between them.
func alternative(name string, sets ...string) v1alpha1.Alternative {
	a := v1alpha1.Alternative{Name: name}
	for _, set := range sets {
		a.AnyOf = append(a.AnyOf, v1alpha1.ProgramSet{Programs: strings.Fields(set)})
	}
	return a
}

func onFunction(name, hookName, function string) v1alpha1.Program {
	return v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{{Hook: hookName, Functions: &v1alpha1.Functions{Names: []string{function}}}}}
}

func onTracepoint(name, hookName, tracepoint string) v1alpha1.Program {
	return v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{{Hook: hookName, Tracepoint: tracepoint}}}
}

// states are those of all attachments, by program; of a program with none it is empty.
func states(t *testing.T, a *agent.Agent) map[string]agent.LinkState {
	t.Helper()
	all := map[string]agent.LinkState{}
	s := a.Status()
	if len(s) != 1 {
		t.Fatalf("Status = %+v", s)
	}
	for _, p := range s[0].Programs {
		all[p.Name] = ""
		for _, l := range p.Links {
			if all[p.Name] = l.State; l.State == agent.Skipped && (l.Error == "" || p.ID != 0) {
				t.Errorf("program %s with id %d is skipped without a reason, or loaded: %+v", p.Name, p.ID, l)
			}
		}
	}
	return all
}

func TestTheFirstSetThatTheKernelSupportsRuns(t *testing.T) {
	need.Kernel(t)
	supported := func(name string) bool {
		h, ok := hook.Lookup(name)
		return ok && attach.Probe(h) == nil
	}
	best := "by_raw_tp"
	if supported("kprobe") {
		best = "by_kprobe"
	}
	if supported("fentry") && supported("fexit") {
		best = "by_fentry"
	}
	fentry, fexit := onFunction("by_fentry", "fentry", "security_task_getpgid"), onFunction("by_fexit", "fexit", "security_task_getpgid")
	kprobe, rawTP := onFunction("by_kprobe", "kprobe", "security_task_getpgid"), onTracepoint("by_raw_tp", "raw_tp", "sys_enter")
	tracepoint := onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_getpgid")
	for sentence, c := range map[string]struct {
		alternatives []v1alpha1.Alternative
		programs     []v1alpha1.Program
		attached     []string
		skipped      string
	}{
		"by what the kernel has of hooks": {[]v1alpha1.Alternative{alternative("getpgid", "by_fentry by_fexit", "by_kprobe", "by_raw_tp")},
			[]v1alpha1.Program{fentry, fexit, kprobe, rawTP}, map[string][]string{
				"by_fentry": {"by_fentry", "by_fexit"}, "by_kprobe": {"by_kprobe"}, "by_raw_tp": {"by_raw_tp"},
			}[best],
			map[string]string{
				"by_fentry": "", "by_kprobe": "alternative getpgid does without by_fentry, by_fexit: ",
				"by_raw_tp": "alternative getpgid does without by_fentry, by_fexit, by_kprobe: ",
			}[best]},
		"by the tracepoints that it has": {[]v1alpha1.Alternative{alternative("getpgid", "by_tracepoint", "by_raw_tp")},
			[]v1alpha1.Program{onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_getpgi"), rawTP}, []string{"by_raw_tp"},
			"alternative getpgid does without by_tracepoint: target does not exist: the kernel has no tracepoint syscalls/sys_enter_getpgi; " +
				"near it are syscalls/sys_enter_getpgid"},
		"by the raw tracepoints that it has": {[]v1alpha1.Alternative{alternative("getpgid", "by_raw_tp", "by_tracepoint")},
			[]v1alpha1.Program{onTracepoint("by_raw_tp", "raw_tp", "sys_entr"), tracepoint}, []string{"by_tracepoint"},
			"alternative getpgid does without by_raw_tp: target does not exist: the kernel has no tracepoint sys_entr; near it are sys_enter"},
		"by what its verifier says": {[]v1alpha1.Alternative{alternative("getpgid", "by_tracepoint rejected", "by_raw_tp")},
			[]v1alpha1.Program{tracepoint, onTracepoint("rejected", "raw_tp", "sys_enter"), rawTP}, []string{"by_raw_tp"},
			"alternative getpgid does without by_tracepoint, rejected: load choosing: "},
		"in the order of the sets": {[]v1alpha1.Alternative{alternative("getpgid", "by_raw_tp", "by_tracepoint"), alternative("other", "rejected", "calling")},
			[]v1alpha1.Program{tracepoint, rawTP, onTracepoint("rejected", "raw_tp", "sys_enter"), onTracepoint("calling", "raw_tp", "sys_enter")},
			[]string{"by_raw_tp", "calling"},
			"alternative other does without rejected: load choosing: "},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, stop := w.Start()
			p := choosing(w, c.alternatives, c.programs...)
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
			want := map[string]agent.LinkState{}
			for _, one := range c.programs {
				want[one.Name] = agent.Skipped
			}
			for _, name := range c.attached {
				want[name] = agent.Attached
			}
			check := func(when string) {
				t.Helper()
				if diff := cmp.Diff(want, states(t, a)); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", when, diff)
				}
				for _, alternative := range a.Status()[0].Alternatives {
					for _, set := range alternative.Sets {
						if runs := set.Error == ""; runs != slices.Contains(c.attached, set.Programs[0]) {
							t.Errorf("%s: of alternative %s it says %+v", when, alternative.Name, set)
						}
					}
				}
				if n := len(a.Status()[0].Alternatives); n != len(c.alternatives) {
					t.Errorf("%s: it says of %d alternatives how they are", when, n)
				}
				if s := a.Status()[0]; s.Error != "" || !strings.HasPrefix(s.Skipped, c.skipped) || c.skipped == "" && s.Skipped != "" ||
					strings.Contains(s.Skipped, "\n") {
					t.Fatalf("%s: error %q, skipped %q, want %q", when, s.Error, s.Skipped, c.skipped)
				}
			}
			check("at first")
			before := a.Status()[0]
			stop()
			a, _ = w.Start()
			if err := w.Accept(a); err != nil {
				t.Fatal(err)
			}
			check("after a restart")
			if diff := cmp.Diff(before.Programs, a.Status()[0].Programs); diff != "" {
				t.Errorf("the restarted agent chose or loaded anew (-before +after):\n%s", diff)
			}
			world.Unloads(t, w, a, 0)
		})
	}
}

func TestAnAlternativeThatTheKernelSupportsNoSetOfFails(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	p := choosing(w, []v1alpha1.Alternative{alternative("getpgid", "by_tracepoint", "rejected")},
		onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_nothing"), onTracepoint("rejected", "raw_tp", "sys_enter"))
	err := w.Accept(a, p)
	for _, want := range []string{"alternative getpgid", "sys_enter_nothing", "rejected"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Settled = %v, want %q in it", err, want)
		}
	}
	if s := a.Status()[0]; s.VerifierLog == "" || len(s.Programs) > 0 {
		t.Errorf("Status = %+v", s)
	}
	world.Unloads(t, w, a, 0)
}

// TestWhatIsOptionalIsLeftOut also holds that it comes where it can come later.
func TestWhatIsOptionalIsLeftOut(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, stop := w.Start()
	rejected, calling := onTracepoint("rejected", "raw_tp", "sys_enter"), onTracepoint("calling", "raw_tp", "sys_enter")
	rejected.Optional = true
	tracepoint := onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_getpgid")
	tracepoint.Attach = append(tracepoint.Attach, v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_nothing", Optional: true})
	late := v1alpha1.Program{Name: "by_tcx", Attach: world.On("tcx/ingress", "op0")}
	late.Attach[0].Optional = true
	p := choosing(w, nil, rejected, calling, tracepoint, late)
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	skipped := func() (all []string) {
		for _, p := range a.Status()[0].Programs {
			for _, l := range p.Links {
				if l.State == agent.Skipped {
					all = append(all, p.Name+" "+l.Target)
				}
			}
		}
		return all
	}
	check := func(when string, want ...string) {
		t.Helper()
		s := a.Status()[0]
		if diff := cmp.Diff(want, skipped()); diff != "" || s.Error != "" || s.Conditions[0].Status != "True" ||
			!strings.HasPrefix(s.Skipped, "rejected on raw_tp sys_enter: load choosing: ") {
			t.Fatalf("%s: %+v\nskipped (-want +got):\n%s", when, s, diff)
		}
	}
	check("at first", "rejected sys_enter", "by_tracepoint syscalls/sys_enter_nothing", "by_tcx names op0")
	stop()
	a, _ = w.Start()
	if err := w.Accept(a); err != nil {
		t.Fatal(err)
	}
	check("after a restart", "rejected sys_enter", "by_tracepoint syscalls/sys_enter_nothing", "by_tcx names op0")
	h, _ := hook.Lookup("tcx/ingress")
	if attach.Probe(h) == nil {
		world.Veth(t, "op0", "op1")
		world.Until(t, "the interface to be attached to", time.Minute, func() bool { return len(skipped()) == 2 })
		check("with the interface", "rejected sys_enter", "by_tracepoint syscalls/sys_enter_nothing")
	}
	world.Unloads(t, w, a, 0)
}

// TestManyFunctionsAreAttachedToByOneLink holds that a node does so where it can, and that a
// function it cannot do so for has a link for each.
func TestManyFunctionsAreAttachedToByOneLink(t *testing.T) {
	need.Kernel(t)
	for _, name := range []string{"kprobe", "kprobe.multi"} {
		world.NeedHook(t, name)
	}
	attachments := func(names ...string) v1alpha1.Program {
		p := onFunction("by_kprobe", "kprobe", names[0])
		p.Attach[0].Functions.Names = names
		return p
	}
	for sentence, c := range map[string]struct {
		program v1alpha1.Program
		want    []string
	}{
		"one is named":        {attachments("security_task_getpgid"), []string{"kprobe security_task_getpgid"}},
		"two are named":       {attachments("security_task_getpgid", "security_task_getsid"), []string{"kprobe.multi security_task_getpgid, security_task_getsid"}},
		"a glob chooses some": {attachments("security_task_gets*", "security_task_getp*"), []string{"kprobe.multi security_task_gets*, security_task_getp*"}},
		"one is missing": {attachments("security_task_getpgid", "security_task_nothing"),
			[]string{"kprobe security_task_getpgid", "kprobe security_task_nothing"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, stop := w.Start()
			p := choosing(w, nil, c.program)
			_ = w.Accept(a, p)
			links := func() (all []string) {
				for _, p := range a.Status()[0].Programs {
					for _, l := range p.Links {
						target, _, _ := strings.Cut(l.Target, " (")
						all = append(all, l.Hook+" "+target)
					}
				}
				return all
			}
			if diff := cmp.Diff(c.want, links()); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			before := a.Status()[0].Programs[0]
			counted := world.Section(w, a, "%2ebss")
			if _, err := unix.Getpgid(os.Getpid()); err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(counted, world.Section(w, a, "%2ebss")) {
				t.Error("the program did not run")
			}
			stop()
			a, _ = w.Start()
			_ = w.Accept(a)
			if after := a.Status()[0].Programs[0]; after.ID != before.ID || after.Links[0].ID != before.Links[0].ID {
				t.Errorf("the restarted agent did not adopt: %+v then %+v", before, after)
			}
			world.Unloads(t, w, a, before.Links[0].ID)
		})
	}
}

// TestTailCallsOfAChosenSetAreMade runs a program that is reached by a tail call alone.
func TestTailCallsOfAChosenSetAreMade(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	called := onTracepoint("called", "raw_tp", "sys_exit")
	p := choosing(w, []v1alpha1.Alternative{alternative("getpgid", "rejected", "calling called")},
		onTracepoint("rejected", "raw_tp", "sys_enter"), onTracepoint("calling", "raw_tp", "sys_enter"), called)
	if err := w.Accept(a, p); err != nil {
		t.Fatal(err)
	}
	var id uint32
	if err := world.Pinned(w, a, "calls").Lookup(uint32(1), &id); err != nil || id == 0 {
		t.Fatalf("the tail call is not made: %v, program %d", err, id)
	}
	world.Unloads(t, w, a, 0)
}

// TestOptionalAttachmentsOfOneProgramAreLeftOutOneByOne holds that what one lacks is not said of
// the others, although they take the same program.
func TestOptionalAttachmentsOfOneProgramAreLeftOutOneByOne(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	a, _ := w.Start()
	p := onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_nothing")
	p.Attach = append(p.Attach, v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"},
		v1alpha1.Attachment{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_none"})
	for i := range p.Attach {
		p.Attach[i].Optional = true
	}
	if err := w.Accept(a, choosing(w, nil, p)); err != nil {
		t.Fatal(err)
	}
	got := map[string]agent.LinkState{}
	for _, l := range a.Status()[0].Programs[0].Links {
		got[l.Target] = l.State
	}
	want := map[string]agent.LinkState{
		"syscalls/sys_enter_nothing": agent.Skipped, "syscalls/sys_enter_getpgid": agent.Attached, "syscalls/sys_enter_none": agent.Skipped,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	world.Unloads(t, w, a, 0)
}

// TestNobodyElseSaysThatAProgramIsSkipped holds that a restarted agent believes no such note of
// a program that the intent does not leave to it, and none that leaves no set to run.
func TestNobodyElseSaysThatAProgramIsSkipped(t *testing.T) {
	need.Kernel(t)
	for sentence, isLoaded := range map[string]bool{"beside its pin": true, "in place of its pin": false} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, stop := w.Start()
			p := choosing(w, []v1alpha1.Alternative{alternative("x", "calling", "by_tracepoint")}, onTracepoint("by_raw_tp", "raw_tp", "sys_enter"),
				onTracepoint("calling", "raw_tp", "sys_enter"), onTracepoint("by_tracepoint", "tracepoint", "syscalls/sys_enter_getpgid"))
			if err := w.Accept(a, p); err != nil {
				t.Fatal(err)
			}
			before := states(t, a)
			stop()
			for _, name := range []string{"by_raw_tp", "calling"} {
				pins, err := filepath.Glob(filepath.Join(w.BPFFS, "*", "*", "p-"+name))
				if err != nil || len(pins) != 1 {
					t.Fatalf("Glob = %v, %v", pins, err)
				}
				if err := os.Symlink("it is said so", pins[0]+"+skipped"); err != nil {
					t.Fatal(err)
				}
				if !isLoaded {
					if err := os.Remove(pins[0]); err != nil {
						t.Fatal(err)
					}
				}
			}
			a, _ = w.Start()
			if err := w.Accept(a); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, states(t, a)); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			world.Unloads(t, w, a, 0)
		})
	}
}

// TestAnOptionalFunctionOfABinaryIsLeftOut holds, too, that what ran before an update is not
// dropped while nothing of the update can run in its place.
func TestAnOptionalFunctionOfABinaryIsLeftOut(t *testing.T) {
	need.Kernel(t)
	world.NeedHook(t, "uprobe")
	w := world.New(t)
	a, _ := w.Start()
	path := world.Install(t, userbinary.Make(world.Workers(), userbinary.Options{}))
	optional := func(version, symbol string) intent.Payload {
		return world.Version(w, version, v1alpha1.Attachment{Hook: "uprobe", Optional: true, Binary: &v1alpha1.UserBinary{Path: path, Symbol: symbol}})
	}
	only := func() agent.LinkStatus {
		t.Helper()
		s := a.Status()[0]
		if len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 {
			t.Fatalf("Status = %+v", s)
		}
		return s.Programs[0].Links[0]
	}
	if err := w.Accept(a, optional("1", "nothing")); err != nil {
		t.Fatal(err)
	}
	if l := only(); l.State != agent.Skipped || !strings.Contains(l.Error, "nothing: not found") {
		t.Errorf("the function that is missing: %+v", l)
	}
	if err := w.Accept(a, optional("1", "other")); err != nil {
		t.Fatal(err)
	}
	before := only()
	if err := os.WriteFile(path, userbinary.Make(world.Workers()[:1], userbinary.Options{}), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.Accept(a, optional("2", "other")); err != nil {
		t.Fatal(err)
	}
	l := only()
	revisions, err := filepath.Glob(filepath.Join(w.BPFFS, "*", "*", "p-on_uprobe"))
	if err != nil || len(revisions) != 2 || l.ID != before.ID || l.Error == "" {
		t.Errorf("the revisions are %v (%v), the link was %+v and is %+v", revisions, err, before, l)
	}
	world.Unloads(t, w, a, before.ID)
}
