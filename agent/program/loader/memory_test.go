package loader

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/hardened"
	"github.com/skep-dev/skep/test/harness/need"
)

// bigMaps prepares an object of two maps, with these numbers of entries.
func bigMaps(t *testing.T, rows, perCPU uint32) *Prepared { return bigMapsThat(t, "", rows, perCPU) }

// bigMapsThat are kept or reset in an update.
func bigMapsThat(t *testing.T, update v1alpha1.MapUpdate, rows, perCPU uint32) *Prepared {
	t.Helper()
	p, err := Prepare(opened(t, intent.Payload{
		Maps:     map[string]v1alpha1.Map{"big": {MaxEntries: &rows, OnUpdate: update}, "big_per_cpu": {MaxEntries: &perCPU, OnUpdate: update}},
		Programs: program("xdp_big_map", "xdp", ""),
	}), programs.Object("xdp_big_map"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func memoryOf(revisions map[string]*Revision) uint64 {
	return mapMemory(map[string]map[string]*Revision{"uid": revisions})["uid"]
}

func memory(t *testing.T, p *Prepared, old *Revision) uint64 {
	t.Helper()
	found, err := p.mapMemory(old)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestMapsWeighTheSameBeforeAndAfterTheyAreMade weighs the maps of an object, and those of its
// revision.
func TestMapsWeighTheSameBeforeAndAfterTheyAreMade(t *testing.T) {
	for sentence, prepare := range map[string]func() *Prepared{
		"maps of a size":                   func() *Prepared { return bigMaps(t, 256, 8) },
		"data sections, and a map of many": func() *Prepared { return tracer(t, "1") },
	} {
		t.Run(sentence, func(t *testing.T) {
			need.Kernel(t)
			p := prepare()
			want := memory(t, p, nil)
			r := load(t, p, nil)
			if loaded := memoryOf(map[string]*Revision{"a": r}); want == 0 || loaded != want {
				t.Errorf("%d bytes before, %d when they are made", want, loaded)
			}
			same, err := r.Share()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = same.Close() }()
			if err := same.Index(); err != nil {
				t.Fatal(err)
			}
			if both := memoryOf(map[string]*Revision{"a": r, "b": same}); both != want {
				t.Errorf("the same maps twice weigh %d, want %d", both, want)
			}
		})
	}
}

// TestSharedMapsWeighOnce updates an object whose one map keeps its contents.
func TestSharedMapsWeighOnce(t *testing.T) {
	need.Kernel(t)
	old := load(t, bigMaps(t, 256, 8), nil)
	next := bigMaps(t, 256, 16)
	add := memory(t, next, old)
	if all := memory(t, next, nil); add == 0 || add > all-256*4096 {
		t.Errorf("beside the maps that are shared it takes %d, alone %d", add, all)
	}
	r := load(t, next, old)
	if both := memoryOf(map[string]*Revision{"a": old, "b": r}); both != memoryOf(map[string]*Revision{"a": old})+add {
		t.Errorf("both take %d, the first %d and the second %d more", both, memoryOf(map[string]*Revision{"a": old}), add)
	}
}

// TestMapsThatAreResetWeighBesideThoseTheyReplace: both are there until the programs are
// replaced. The revision itself that is loaded once more shares its maps.
func TestMapsThatAreResetWeighBesideThoseTheyReplace(t *testing.T) {
	need.Kernel(t)
	old, next := load(t, bigMaps(t, 256, 8), nil), bigMapsThat(t, v1alpha1.MapReset, 256, 8)
	if add, all := memory(t, next, old), memory(t, next, nil); add != all {
		t.Errorf("beside the maps that it resets it takes %d, alone %d", add, all)
	}
	r := load(t, next, old)
	if add, all := memory(t, next, r), memory(t, next, nil); add >= all {
		t.Errorf("loaded once more it takes %d, alone %d", add, all)
	}
}

func TestFiguresOfMemoryAddUp(t *testing.T) {
	need.Sys(t)
	array := func(entries uint32) *ebpf.MapSpec {
		return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 1 << 20, MaxEntries: entries}
	}
	huge := &ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: math.MaxUint32, MaxEntries: math.MaxUint32}
	for sentence, c := range map[string]struct {
		maps      map[string]*ebpf.MapSpec
		low, high uint64
	}{
		"two maps": {map[string]*ebpf.MapSpec{"a": array(1), "b": array(2)}, 3 << 20, 4 << 20},
		"the template of inner maps": {
			map[string]*ebpf.MapSpec{"a": {Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: array(5)}}, 5 << 20, 6 << 20,
		},
		"what is beyond every figure":          {map[string]*ebpf.MapSpec{"a": huge, "b": huge}, MostMapMemory, MostMapMemory},
		"what is beyond them, and a small one": {map[string]*ebpf.MapSpec{"a": huge, "b": array(1)}, MostMapMemory, MostMapMemory},
	} {
		if got := memory(t, &Prepared{Spec: &ebpf.CollectionSpec{Maps: c.maps}}, nil); got < c.low || got > c.high {
			t.Errorf("%s: %d bytes, want %d to %d", sentence, got, c.low, c.high)
		}
	}
	if got := memoryOf(map[string]*Revision{"none": nil}); got != 0 {
		t.Errorf("no revision takes %d", got)
	}
}

// TestProgramsWeighWhatTheKernelKeepsOfThem loads a small program, one of as many instructions as
// the kernel takes in a tenth of a second, and some of instructions that the kernel replaces by several,
// once for each of two scopes.
func TestProgramsWeighWhatTheKernelKeepsOfThem(t *testing.T) {
	need.Kernel(t)
	hardened.JIT(t, false, func() {
		await.True(t, "an answer of this time", time.Minute, func() bool { return !jit.Blinds() })
		weigh(t)
	})
}

func weigh(t *testing.T) {
	t.Helper()
	packet := asm.Instruction{OpCode: asm.OpCode(asm.LdClass) | asm.OpCode(asm.AbsMode) | asm.OpCode(asm.Word)}
	for sentence, c := range map[string]struct {
		n    int
		kind ebpf.ProgramType
		one  asm.Instruction
		// times is how many times what the kernel keeps may be claimed; 0 is any.
		times uint64
	}{
		"a small program":            {8, ebpf.RawTracepoint, asm.Mov.Imm(asm.R0, 0), 0},
		"a large one":                {100_000, ebpf.RawTracepoint, asm.Mov.Imm(asm.R0, 0), 4},
		"loads of classic BPF":       {2000, ebpf.SchedCLS, packet, 4},
		"divisions by registers":     {2000, ebpf.SchedCLS, asm.Mod.Reg(asm.R7, asm.R6), 10},
		"signed ones":                {1000, ebpf.SchedCLS, asm.SDiv.Reg(asm.R7, asm.R6), 4},
		"fields of a packet":         {1000, ebpf.SchedCLS, asm.LoadMem(asm.R7, asm.R6, 152, asm.DWord), 4},
		"calls of a helper":          {2000, ebpf.SchedCLS, asm.FnJiffies64.Call(), 6},
		"calls that are not changed": {2000, ebpf.SchedCLS, asm.FnKtimeGetNs.Call(), 5},
	} {
		t.Run(sentence, func(t *testing.T) {
			n, spec := c.n, &ebpf.ProgramSpec{Type: c.kind, License: "GPL"}
			spec.Instructions = asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 7), asm.Mov.Imm(asm.R0, 0)}
			if c.one.OpCode.Class().IsALU() && c.kind == ebpf.SchedCLS {
				spec.Instructions = append(spec.Instructions, asm.LoadMem(asm.R6, asm.R6, 8, asm.Word))
			}
			for range n {
				spec.Instructions = append(spec.Instructions, c.one)
			}
			spec.Instructions = append(spec.Instructions, asm.Return())
			if c.kind == ebpf.RawTracepoint {
				spec.Instructions = spec.Instructions[3:]
			}
			prepared := &Prepared{Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p@scope/a": spec, "p@scope/b": spec}}}
			claimed, err := prepared.Memory(nil)
			if err != nil {
				t.Fatal(err)
			}
			r := &Revision{UID: "uid", Programs: map[string]*ebpf.Program{}}
			defer func() { _ = r.Close() }()
			var keeps uint64
			for name := range prepared.Spec.Programs {
				p, err := ebpf.NewProgram(spec)
				if err != nil {
					t.Fatal(err)
				}
				r.Programs[name] = p
				info, err := p.Info()
				if err != nil {
					t.Fatal(err)
				}
				translated, _ := info.Memlock()
				jited, err := info.JitedSize()
				if err != nil {
					t.Fatal(err)
				}
				keeps += translated + uint64(jited)
			}
			if err := r.Index(); err != nil {
				t.Fatal(err)
			}
			runs := Memory(map[string]map[string]*Revision{"uid": {"a": r}})["uid"]
			if runs < keeps || claimed < keeps || claimed < runs {
				t.Errorf("%d bytes are claimed and %d are counted of %d that the kernel keeps", claimed, runs, keeps)
			}
			if c.times > 0 && claimed > c.times*keeps {
				t.Errorf("%d bytes are claimed, and the kernel keeps %d", claimed, keeps)
			}
		})
	}
}
