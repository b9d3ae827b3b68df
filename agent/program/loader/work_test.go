package loader

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/deadline"
	"github.com/skep-dev/skep/agent/program/jit"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/hardened"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestANamespaceLoadsWhatTheGateCounted prepares each program of the fixtures for each hook of its type,
// as a namespace has it: with guards, bounds and cleared stacks it is no more work than the facts say.
func TestANamespaceLoadsWhatTheGateCounted(t *testing.T) {
	prepared := 0
	for _, name := range programs.Names() {
		facts, err := bytecode.Inspect(bytes.NewReader(programs.Object(name)), bytecode.Options{})
		if err != nil {
			continue
		}
		for _, fact := range facts.Programs {
			for _, h := range hook.All() {
				if !h.Attachable || !h.Namespaceable || h.ProgramType.String() != fact.Type || h.LoadsForTarget() {
					continue
				}
				at := v1alpha1.Attachment{Hook: h.Name, Pods: &v1alpha1.Pods{}, Functions: &v1alpha1.Functions{Names: []string{"f"}}}
				p, err := Prepare(opened(t, intent.Payload{Programs: []v1alpha1.Program{{Name: fact.Name, Attach: []v1alpha1.Attachment{at}}}}), programs.Object(name))
				if err != nil {
					continue
				}
				for instance, ps := range p.Spec.Programs {
					if !strings.HasPrefix(instance, fact.Name) {
						continue
					}
					prepared++
					if cost := bytecode.WorkOf(ps.Type, ps.Instructions).Cost(); cost > fact.LoadCost {
						t.Errorf("%s of %s on %s costs %d, and its facts say %d", instance, name, h.Name, cost, fact.LoadCost)
					}
				}
			}
		}
	}
	if prepared < 50 {
		t.Errorf("%d programs were prepared: too few to mean anything", prepared)
	}
}

// TestANamespaceLoadsWithinBounds: what the gate would deny is not loaded, whatever a seal says.
func TestANamespaceLoadsWithinBounds(t *testing.T) {
	insns := asm.Instructions{asm.Mov.Imm(asm.R7, 7)}
	for range 6000 {
		insns = append(insns, asm.Mod.Reg(asm.R7, asm.R7))
	}
	slow := &ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())}
	small := &ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}
	for sentence, c := range map[string]struct {
		maps     ebpf.MapType
		programs map[string]*ebpf.ProgramSpec
		says     string
	}{
		"a small program": {ebpf.Hash, map[string]*ebpf.ProgramSpec{"p": small}, ""},
		"storage on sockets": {ebpf.SkStorage, map[string]*ebpf.ProgramSpec{"p": small},
			"map m denied by load/maps: a map of type SkStorage takes memory of the agent for each socket"},
		"thousands of divisions":     {ebpf.Hash, map[string]*ebpf.ProgramSpec{"p": slow}, "programs denied by load/cost: they may take the kernel up to"},
		"of one program among small": {ebpf.Hash, map[string]*ebpf.ProgramSpec{"a": small, "b": slow}, "programs denied by load/cost: they may"},
	} {
		spec := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{"m": {Type: c.maps}}, Programs: c.programs}
		p := &Prepared{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "net", Name: "app"}, Spec: spec}
		err := p.withinNamespace(nil)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", sentence, err, c.says)
		}
	} // It is asked before anything is made, and of namespaces alone.
	p := &Prepared{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication},
		Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p": slow}}}
	var refused *LoadError
	if _, _, err := Load(p, nil, nil, nil); !errors.As(err, &refused) {
		t.Errorf("Load = %v, want a rejection", err)
	}
	if p.Application.Kind = v1alpha1.KindClusterBpfApplication; p.withinNamespace(nil) != nil {
		t.Error("it binds the cluster, too")
	}
}

// TestAnOptionalProgramThatTakesTooLongIsLeftOut has one that the verifier does not finish within the time of a load, before one that it would.
func TestAnOptionalProgramThatTakesTooLongIsLeftOut(t *testing.T) {
	need.Kernel(t)
	named := slices.Concat(program("slow_1", "raw_tp", "sys_enter"), program("slow_2", "raw_tp", "sys_enter"), program("slow_3", "raw_tp", "sys_enter"))
	named[0].Optional, named[1].Optional = true, true
	for sentence, c := range map[string]struct {
		bound time.Duration
		slow  []string
		// runs has the programs of the version before.
		runs []v1alpha1.Program
		// skipped is left out; a load without one fails.
		skipped []string
	}{
		"the first optional one":                {50 * time.Millisecond, []string{"slow_1"}, nil, []string{"slow_1", "slow_2"}},
		"the last optional one":                 {50 * time.Millisecond, []string{"slow_2"}, nil, []string{"slow_2"}},
		"one that has to be there":              {50 * time.Millisecond, []string{"slow_3"}, nil, nil},
		"a load that may begin anew":            {0, []string{"slow_1"}, nil, nil},
		"an update of one that runs":            {50 * time.Millisecond, []string{"slow_1"}, named, nil},
		"an update of one before one that runs": {50 * time.Millisecond, []string{"slow_1"}, named[1:], nil},
		"an update that adds one":               {50 * time.Millisecond, []string{"slow_2"}, slices.Delete(slices.Clone(named), 1, 2), []string{"slow_2"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			before := running(t, c.runs)
			p := prepareSlow(t, named, c.slow)
			p.Bound = c.bound
			AskOnce()
			var r *Revision
			var err error
			if isOver, unbounded := deadline.Within(50*time.Millisecond, func() { r, _, err = Load(p, before, nil, nil) }); !isOver {
				t.Fatalf("the time is not up: %v", unbounded)
			}
			if c.skipped == nil {
				if !errors.Is(err, unix.ETIME) {
					t.Errorf("Load = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			if left := slices.Sorted(maps.Keys(r.Skipped)); !slices.Equal(left, c.skipped) || len(r.Programs) != len(named)-len(left) {
				t.Errorf("%v are left out, and %v run", left, r.Programs)
			}
			for name, why := range r.Skipped {
				if !strings.Contains(why, name) || !strings.Contains(why, "denied by load/time: the kernel's verifier did not end within 50ms") {
					t.Errorf("%s is left out: %s", name, why)
				}
			}
		})
	}
}

// prepareSlow prepares programs of which the verifier is done with all but some at once.
func prepareSlow(t *testing.T, named []v1alpha1.Program, slow []string) *Prepared {
	t.Helper()
	p, err := PrepareToLoad(opened(t, intent.Payload{Programs: named}), programs.Object("raw_tp_slow"), btf.NewCache())
	if err != nil {
		t.Fatal(err)
	}
	for name, ps := range p.Spec.Programs {
		if !slices.Contains(slow, name) {
			ps.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
		}
	}
	return p
}

// running is a revision of the programs as a load beside the agent's loop has it; nil without programs.
func running(t *testing.T, named []v1alpha1.Program) *Revision {
	t.Helper()
	if named == nil {
		return nil
	}
	r, _, err := Load(prepareSlow(t, named, nil), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := r.Share()
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Close() })
	return shared
}

// TestANamespaceLoadsFewerConstantsWhereTheyAreBlinded: what costs nothing elsewhere takes a kernel long that
// blinds constants.
func TestANamespaceLoadsFewerConstantsWhereTheyAreBlinded(t *testing.T) {
	need.Kernel(t)
	insns := asm.Instructions{asm.Mov.Imm(asm.R7, 7)}
	for i := range 20_000 {
		insns = append(insns, asm.Xor.Imm(asm.R7, int32(i)))
	}
	spec := &ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())}
	p := &Prepared{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "net", Name: "app"},
		Spec: &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p": spec}}}
	for blinds, says := range map[bool]string{false: "", true: "to load where net.core.bpf_jit_harden is 2"} {
		hardened.JIT(t, blinds, func() {
			await.True(t, "an answer of this time", time.Minute, func() bool { return jit.Blinds() == blinds })
			if err := p.withinNamespace(nil); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("where constants are blinded is %v: %v", blinds, err)
			}
		})
	}
}

// TestAMapThatTakesLongToMakeIsDeniedByItsName: the sentence says which one, of which rule, for how many CPUs, and what its type lets an
// author do.
func TestAMapThatTakesLongToMakeIsDeniedByItsName(t *testing.T) {
	need.Kernel(t)
	cpus, err := countCPUs()
	if err != nil {
		t.Fatal(err)
	}
	for kind, fix := range map[ebpf.MapType]string{
		ebpf.PerCPUArray: "give it fewer entries, keep off", ebpf.LRUCPUHash: "give it fewer entries, keep off",
		ebpf.PerCPUHash: "give it fewer entries or the flag BPF_F_NO_PREALLOC, keep off",
	} {
		p := &Prepared{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "net", Name: "app"}, Spec: &ebpf.CollectionSpec{
			Maps: map[string]*ebpf.MapSpec{"a": {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 9},
				"large": {Type: kind, KeySize: 4, ValueSize: 8, MaxEntries: 8 << 20}, "z": {Type: kind, KeySize: 4, ValueSize: 8, MaxEntries: 9}}}}
		err := p.withinNamespace(nil)
		if err == nil {
			t.Errorf("%s is made", kind)
			continue
		}
		for _, says := range []string{"map large denied by load/cost: ", fmt.Sprintf("for its %d CPUs", cpus), "with 8388608 entries", fix, "spec.nodeSelector",
			v1alpha1.KindClusterBpfApplication} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want it to say %q", kind, err, says)
			}
		}
	}
}
