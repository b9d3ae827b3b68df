package loader

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/agent/program/relocate"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/hardened"
	"github.com/skep-dev/skep/test/harness/need"
)

// callsOf are the facts of an object as an intent has them, but for what its programs read and a call that it is to lack.
func callsOf(t *testing.T, object []byte, without string) *intent.Facts {
	t.Helper()
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	calls, has := bytecode.Seal(facts.Programs)
	for name, all := range has {
		has[name] = slices.DeleteFunc(all, func(fact string) bool { return !strings.HasPrefix(fact, "calls ") })
	}
	for i, name := range calls {
		if name == without {
			// The places of the other ones stay.
			calls[i] = ""
		}
	}
	return &intent.Facts{Calls: calls, Reads: has}
}

func TestAProgramDoesNoMoreThanItsIntentSays(t *testing.T) {
	need.Kernel(t)
	hidden, negative, socket := "tp_btf_core_hidden", "xdp_core_negative", "tcx_core_socket"
	named := map[string][]v1alpha1.Program{hidden: program(hidden, "tp_btf", "sched_process_exec"), negative: program(negative, "xdp", ""),
		socket: program(socket, "tcx/ingress", ""), "xdp_core": program("xdp_core", "xdp", "")}
	room := map[string][]string{negative: {"bpf_xdp_adjust_head"}}
	loads := map[string][]string{hidden: {"a load"}}
	cluster := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	for sentence, c := range map[string]struct {
		object      string
		application v1alpha1.Identity
		facts       bool
		without     string
		reads       map[string][]string
		want        string
	}{
		"a hidden load": {object: hidden, facts: true, want: "reads memory of the kernel by a load (a load at instruction "},
		"a hidden load of an intent without facts":  {object: hidden, want: "reads memory of the kernel by a load (a load at instruction "},
		"a load that was seen":                      {object: hidden, facts: true, reads: loads},
		"a load of another program that was seen":   {object: hidden, facts: true, reads: map[string][]string{"other": {"a load"}}, want: "by a load"},
		"a hidden load of a cluster":                {object: hidden, application: cluster, facts: true, want: "by a load"},
		"one of a cluster that has no facts":        {object: hidden, application: cluster},
		"hidden room":                               {object: negative, facts: true, want: "reads memory of the kernel by bpf_xdp_adjust_head, which"},
		"hidden room of an intent without facts":    {object: negative, want: "by bpf_xdp_adjust_head"},
		"room that was seen":                        {object: negative, facts: true, reads: room},
		"a load in the place of room that was seen": {object: hidden, facts: true, reads: map[string][]string{hidden: {"bpf_xdp_adjust_head"}}, want: "by a load"},
		"a helper that was not seen":                {object: "xdp_core", facts: true, without: "bpf_map_lookup_elem", want: "uses bpf_map_lookup_elem, which"},
		"a hidden socket":                           {object: socket, facts: true, want: "reads the socket of a packet, which"},
		"a socket that was seen":                    {object: socket, facts: true, reads: map[string][]string{socket: {"fact readsPacketSocket"}}},
		"a socket of an intent without such facts":  {object: socket, facts: true, without: "fact readsPacketSocket"},
		"nothing":                            {object: "xdp_core", facts: true},
		"nothing of an intent without facts": {object: "xdp_core"},
	} {
		t.Run(sentence, func(t *testing.T) {
			object := programs.Object(c.object)
			p := intent.Payload{Application: c.application, Programs: named[c.object]}
			if c.facts {
				p.Facts = callsOf(t, object, c.without)
				for name, reads := range c.reads {
					p.Facts.Reads[name] = append(p.Facts.Reads[name], reads...)
				}
			}
			_, err := PrepareToLoad(opened(t, p), object, btf.NewCache())
			if denied := new(DeniedError); errors.As(err, &denied) != (c.want != "") || err != nil && c.want == "" {
				t.Fatalf("PrepareToLoad = %v, want %q", err, c.want)
			}
			if c.want != "" && (!strings.Contains(err.Error(), "program "+c.object+" denied by load/facts: ") || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("PrepareToLoad = %v, want %q", err, c.want)
			}
		})
	}
}

// TestAProgramDoesNotCallWhatOnlyAnotherWasAllowed has two programs, of which the intent allows one no helper. An intent of an earlier
// build has one list for both.
func TestAProgramDoesNotCallWhatOnlyAnotherWasAllowed(t *testing.T) {
	need.Kernel(t)
	object, both := programs.Object("tcx_count"), slices.Concat(program("count_ingress", "tcx/ingress", ""), program("count_egress", "tcx/egress", ""))
	facts := callsOf(t, object, "")
	if err := prepareWith(t, object, both, facts); err != nil {
		t.Fatal(err)
	}
	delete(facts.Reads, "count_ingress")
	err := prepareWith(t, object, both, facts)
	if denied := new(DeniedError); !errors.As(err, &denied) || denied.Program != "count_ingress" || denied.Does != "uses bpf_map_lookup_elem" {
		t.Errorf("PrepareToLoad = %v", err)
	}
	if err := prepareWith(t, object, both, &intent.Facts{Calls: callsOf(t, object, "fact ownCalls").Calls}); err != nil {
		t.Errorf("an intent of an earlier build: %v", err)
	}
}

func prepareWith(t *testing.T, object []byte, named []v1alpha1.Program, facts *intent.Facts) error {
	t.Helper()
	app := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	_, err := PrepareToLoad(opened(t, intent.Payload{Application: app, Programs: named, Facts: facts}), object, btf.NewCache())
	return err
}

// TestWhatIsLoadedIsWhatTheLibraryMakes loads programs as they were relocated to be looked at, and as
// the library relocates them by itself. The kernel's tag is a hash of all instructions.
func TestWhatIsLoadedIsWhatTheLibraryMakes(t *testing.T) {
	need.Kernel(t)
	hardened.JIT(t, false, func() {
		for object, body := range map[string][]byte{
			"tp_btf_core_hidden": programs.Object("tp_btf_core_hidden"), "raw_tp_core_local": programs.Object("raw_tp_core_local"),
			"core_relocs": fromCorpus(t, "core_relocs"),
		} {
			t.Run(object, func(t *testing.T) {
				named := bySections(t, body)
				p, err := prepare(opened(t, intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}, Programs: named}),
					body, inScopes(nil), onThisKernel())
				if err != nil {
					t.Fatal(err)
				}
				for name, ps := range p.Spec.Programs {
					if relocate.HasPending(ps.Instructions) {
						t.Errorf("%s is to be relocated still", name)
					}
				}
				ours, _, err := Load(p, nil, nil, btf.NewCache())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = ours.Close() }()
				spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(slices.Collect(maps.Values(spec.Programs)), func(ps *ebpf.ProgramSpec) bool { return relocate.HasPending(ps.Instructions) }) {
					t.Fatal("nothing is relocated")
				}
				libraries, err := ebpf.NewCollection(spec)
				if err != nil {
					t.Fatal(err)
				}
				defer libraries.Close()
				if len(ours.Programs) == 0 {
					t.Fatal("nothing is loaded")
				}
				for instance, program := range ours.Programs {
					name, _, _ := strings.Cut(instance, "@")
					compareTranslated(t, program, libraries.Programs[name])
				}
			})
		}
	})
}

// compareTranslated compares two programs of the kernel: what they were loaded as, and what it made
// of them, but for addresses.
func compareTranslated(t *testing.T, one, other *ebpf.Program) {
	t.Helper()
	a, b := infoOf(t, one), infoOf(t, other)
	if a.Tag != b.Tag {
		t.Errorf("tags are %s and %s", a.Tag, b.Tag)
	}
	mine, err := a.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := b.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	same := slices.EqualFunc(mine, theirs, func(x, y asm.Instruction) bool {
		return x.OpCode == y.OpCode && x.Dst == y.Dst && x.Src == y.Src && x.Offset == y.Offset && (x.Constant == y.Constant || x.OpCode.IsDWordLoad())
	})
	if !same {
		t.Errorf("translated to\n%v\nand\n%v", mine, theirs)
	}
}

func infoOf(t *testing.T, p *ebpf.Program) *ebpf.ProgramInfo {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestNothingIsLoadedThatWasNotRelocatedBefore(t *testing.T) {
	p, err := Prepare(opened(t, intent.Payload{Programs: program("xdp_core", "xdp", "")}), programs.Object("xdp_core"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(p, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "it was not prepared for a kernel") {
		t.Errorf("Load = %v", err)
	}
}

// TestAPoisonedInstructionStillBeginsItsFunction has a function whose first instruction reads what the
// kernel lacks: its callers find it, and so do the zeroes of its stack.
func TestAPoisonedInstructionStillBeginsItsFunction(t *testing.T) {
	fn := &btf.Func{Name: "f"}
	insns := asm.Instructions{
		btf.WithCORERelocationMetadata(btf.WithFuncMetadata(asm.LoadMem(asm.R0, asm.R1, 8, asm.DWord).WithSymbol("f"), fn), &btf.CORERelocation{}),
		btf.WithCORERelocationMetadata(asm.LoadImm(asm.R1, 8, asm.DWord), &btf.CORERelocation{}),
	}
	relocate.Poison(insns, []int{0, 1}, nil)
	if insns[0].Symbol() != "f" || btf.FuncMetadata(&insns[0]) != fn || !insns[0].IsBuiltinCall() {
		t.Errorf("it is %v", insns[0])
	}
	if !insns[1].OpCode.IsDWordLoad() || relocate.IsPending(&insns[1]) {
		t.Errorf("a wide one is %v", insns[1])
	}
}
