package bytecode

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/bytecode/objectfile"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/corpus"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// inspectedOne inspects a program of instructions alone.
func inspectedOne(t *testing.T, kind ebpf.ProgramType, section string, insns ...asm.Instruction) Program {
	t.Helper()
	insns[0] = insns[0].WithSymbol("f")
	spec := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{
		"f": {Name: "f", Type: kind, SectionName: section, License: "GPL", Instructions: append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())},
	}}
	p, err := inspectProgram(&objectfile.Object{Spec: spec}, "f")
	if err != nil {
		t.Fatal(err)
	}
	return p.facts
}

func TestWhatReadsKernelMemory(t *testing.T) {
	kfunc := func(name string) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall}.WithReference(name)
	}
	through := []asm.Instruction{asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.LoadMem(asm.R2, asm.R1, 8, asm.Word)}
	after := asm.LoadMem(asm.R2, asm.R0, 8, asm.Word)
	for sentence, c := range map[string]struct {
		kind    ebpf.ProgramType
		section string
		insns   []asm.Instruction
		by      []string
	}{
		"nothing":                        {ebpf.Kprobe, "kprobe/f", []asm.Instruction{asm.Mov.Imm(asm.R1, 0)}, nil},
		"the arguments of a function":    {ebpf.Tracing, "fentry/f", through[:1:1], nil},
		"what an argument points to":     {ebpf.Tracing, "fentry/f", through[:2:2], []string{"a load at instruction 1"}},
		"the same of an LSM hook":        {ebpf.LSM, "lsm/file_open", through[:2:2], []string{"a load at instruction 1"}},
		"a packet":                       {ebpf.XDP, "xdp", through[:2:2], nil},
		"a writable tracepoint's buffer": {ebpf.RawTracepointWritable, "raw_tp.w/x", through[:2:2], nil},
		"a helper that reads":            {ebpf.Kprobe, "kprobe/f", []asm.Instruction{asm.FnProbeReadKernel.Call()}, []string{"bpf_probe_read_kernel"}},
		"another process's memory":       {ebpf.Kprobe, "uprobe.s/f", []asm.Instruction{asm.FnCopyFromUserTask.Call()}, []string{"bpf_copy_from_user_task"}},
		"the process's own memory":       {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnProbeReadUser.Call()}, nil},
		"text of an address":             {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnSnprintf.Call()}, []string{"bpf_snprintf"}},
		"text for the kernel's log":      {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnTracePrintk.Call()}, []string{"bpf_trace_printk"}},
		"the task's address":             {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnGetCurrentTaskBtf.Call()}, nil},
		"what the task holds":            {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnGetCurrentTaskBtf.Call(), after}, []string{"a load at instruction 1"}},
		"task storage":                   {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.FnTaskStorageGet.Call(), after}, nil},
		"the stack of the kernel":        {ebpf.Kprobe, "kprobe/f", []asm.Instruction{asm.FnGetStack.Call()}, []string{"bpf_get_stack"}},
		"the process's own stack":        {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.Mov.Imm(asm.R4, flagUserStack|1), asm.FnGetStack.Call()}, nil},
		"the address of that":            {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.Mov.Imm32(asm.R3, flagUserStack), asm.FnGetStackid.Call()}, nil},
		"one and then the other": {ebpf.Kprobe, "uprobe/f",
			[]asm.Instruction{asm.Mov.Imm(asm.R3, flagUserStack), asm.FnGetStackid.Call(), asm.Mov.Imm(asm.R3, 1), asm.FnGetStackid.Call(),
				asm.Mov.Imm(asm.R3, flagUserStack), asm.FnGetStackid.Call()}, []string{"bpf_get_stackid"}},
		"a flag that is added": {
			ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.Mov.Imm(asm.R3, flagUserStack), asm.Add.Imm(asm.R3, -flagUserStack), asm.FnGetStackid.Call()},
			[]string{"bpf_get_stackid"},
		},
		"a flag that was on the stack": {ebpf.Kprobe, "uprobe/f",
			[]asm.Instruction{asm.Mov.Imm(asm.R3, flagUserStack), asm.StoreMem(asm.RFP, -8, asm.R3, asm.DWord), asm.FnProbeReadUser.Call(),
				asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord), asm.FnGetStackid.Call()}, []string{"bpf_get_stackid"}},
		"a flag on one way of two": {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.Mov.Imm(asm.R3, flagUserStack), {
			OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq), Dst: asm.R1, Offset: 1,
		},
			asm.Mov.Imm(asm.R3, 0), asm.FnGetStackid.Call()}, []string{"bpf_get_stackid"}},
		"room before a packet": {ebpf.XDP, "xdp", []asm.Instruction{asm.Mov.Imm(asm.R2, -4), asm.FnXdpAdjustHead.Call()}, []string{"bpf_xdp_adjust_head"}},
		"room of a size that is not known": {ebpf.XDP, "xdp", []asm.Instruction{asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.FnXdpAdjustHead.Call()},
			[]string{"bpf_xdp_adjust_head"}},
		"bytes off a packet": {ebpf.XDP, "xdp", []asm.Instruction{asm.Mov.Imm(asm.R2, 4), asm.FnXdpAdjustHead.Call()}, nil},
		"bytes off it, and then room": {ebpf.XDP, "xdp", []asm.Instruction{
			asm.Mov.Imm(asm.R2, 4), asm.FnXdpAdjustHead.Call(), asm.Mov.Imm(asm.R2, -4), asm.FnXdpAdjustHead.Call(),
		},
			[]string{"bpf_xdp_adjust_head"}},
		"room for metadata":     {ebpf.XDP, "xdp", []asm.Instruction{asm.Mov.Imm(asm.R2, -4), asm.FnXdpAdjustMeta.Call()}, []string{"bpf_xdp_adjust_meta"}},
		"an unknown helper":     {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.BuiltinFunc(9999).Call()}, []string{"helper 9999"}},
		"an unknown kfunc":      {ebpf.Kprobe, "uprobe/f", []asm.Instruction{kfunc("of_a_module")}, []string{"of_a_module"}},
		"a kfunc that reads":    {ebpf.Kprobe, "uprobe/f", []asm.Instruction{kfunc("bpf_copy_from_user_task_str")}, []string{"bpf_copy_from_user_task_str"}},
		"a kfunc that does not": {ebpf.Kprobe, "uprobe/f", []asm.Instruction{kfunc("bpf_rcu_read_lock")}, nil},
		"what a kfunc returns":  {ebpf.Kprobe, "uprobe/f", []asm.Instruction{kfunc("bpf_task_from_pid"), after}, []string{"a load at instruction 1"}},
		"a variable": {ebpf.Kprobe, "uprobe/f", []asm.Instruction{asm.LoadImm(asm.R1, 0, asm.DWord).WithReference("jiffies")},
			[]string{"variable jiffies"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			p := inspectedOne(t, c.kind, c.section, c.insns...)
			if diff := cmp.Diff(c.by, p.ReadsKernelMemoryBy); diff != "" || p.ReadsKernelMemory != (len(c.by) > 0) {
				t.Errorf("reads %v (-want +got):\n%s", p.ReadsKernelMemory, diff)
			}
		})
	}
}

// TestWhatReadsRegisters has programs that call one helper, at addresses of many kinds.
func TestWhatReadsRegisters(t *testing.T) {
	read, from := asm.FnProbeReadKernel.Call(), func(r asm.Register) asm.Instruction { return asm.Mov.Reg(asm.R3, r) }
	argument := asm.LoadMem(asm.R6, asm.R1, 112, asm.DWord)
	spilled := []asm.Instruction{asm.StoreMem(asm.RFP, -8, asm.R6, asm.DWord), asm.FnGetPrandomU32.Call(), asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord)}
	for sentence, c := range map[string]struct {
		kind  ebpf.ProgramType
		insns []asm.Instruction
		by    []hook.Registers
	}{
		"the context":                {ebpf.Kprobe, []asm.Instruction{from(asm.R1), read}, []hook.Registers{hook.InContext}},
		"a number after it":          {ebpf.Kprobe, []asm.Instruction{from(asm.R1), asm.Add.Imm(asm.R3, 112), read}, []hook.Registers{hook.InContext}},
		"an unknown number after it": {ebpf.Kprobe, []asm.Instruction{from(asm.R1), asm.Add.Reg(asm.R3, asm.R2), read}, []hook.Registers{hook.InContext}},
		"an argument":                {ebpf.Kprobe, []asm.Instruction{argument, from(asm.R6), read}, []hook.Registers{hook.InArgument}},
		"a number after it, added to it": {
			ebpf.Kprobe, []asm.Instruction{argument, asm.Mov.Imm(asm.R3, 112), asm.Add.Reg(asm.R3, asm.R6), read}, []hook.Registers{hook.InArgument},
		},
		"one of a raw tracepoint":           {ebpf.RawTracepoint, []asm.Instruction{argument, from(asm.R6), read}, []hook.Registers{hook.InArgument}},
		"an argument that was on the stack": {ebpf.Kprobe, append([]asm.Instruction{argument}, append(spilled, read)...), []hook.Registers{hook.InArgument}},
		"both": {
			ebpf.Kprobe, []asm.Instruction{argument, from(asm.R1), read, from(asm.R6), read}, []hook.Registers{hook.InArgument, hook.InContext},
		},
		"a field of a tracepoint": {ebpf.TracePoint, []asm.Instruction{argument, from(asm.R6), read}, nil},
		"an argument of fentry":   {ebpf.Tracing, []asm.Instruction{argument, from(asm.R6), read}, nil},
		"half of an argument":     {ebpf.Kprobe, []asm.Instruction{asm.LoadMem(asm.R6, asm.R1, 112, asm.Word), from(asm.R6), read}, nil},
		"bits of an argument":     {ebpf.Kprobe, []asm.Instruction{argument, asm.And.Imm(asm.R6, -8), from(asm.R6), read}, nil},
		"the difference of two":   {ebpf.Kprobe, []asm.Instruction{argument, asm.Mov.Imm(asm.R3, 8), asm.Sub.Reg(asm.R3, asm.R6), read}, nil},
		"the sum of two": {
			ebpf.Kprobe, []asm.Instruction{argument, asm.LoadMem(asm.R3, asm.R1, 104, asm.DWord), asm.Add.Reg(asm.R3, asm.R6), read}, nil,
		},
		"a number":                        {ebpf.Kprobe, []asm.Instruction{asm.LoadImm(asm.R3, 1<<40, asm.DWord), read}, nil},
		"the stack":                       {ebpf.Kprobe, []asm.Instruction{from(asm.RFP), read}, nil},
		"what an argument points to":      {ebpf.Kprobe, []asm.Instruction{argument, from(asm.R6), read, asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord), read}, nil},
		"the context, and a symbol":       {ebpf.Kprobe, []asm.Instruction{from(asm.R1), read, asm.LoadImm(asm.R1, 0, asm.DWord).WithReference("jiffies")}, nil},
		"the context, and text elsewhere": {ebpf.Kprobe, []asm.Instruction{from(asm.R1), read, asm.FnProbeReadKernelStr.Call()}, nil},
		"the context, and a load": {
			ebpf.Kprobe, []asm.Instruction{from(asm.R1), read, asm.FnGetCurrentTaskBtf.Call(), asm.LoadMem(asm.R2, asm.R0, 8, asm.Word)}, nil,
		},
		"no call": {ebpf.Kprobe, []asm.Instruction{from(asm.R1)}, nil},
		"what loads write to a map and read": {
			ebpf.Kprobe, []asm.Instruction{
				argument, asm.LoadMapValue(asm.R7, 0, 0), asm.StoreMem(asm.R7, 0, asm.R6, asm.DWord), asm.LoadMem(asm.R3, asm.R7, 0, asm.DWord), read,
			}, nil,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if p := inspectedOne(t, c.kind, "uprobe/f", c.insns...); !slices.Equal(p.ReadsRegistersBy, c.by) {
				t.Errorf("reads registers by %v, want %v", p.ReadsRegistersBy, c.by)
			}
		})
	}
}

// TestWhatLibbpfsMacrosRead has objects with BPF_USDT and BPF_KSYSCALL as users compile them.
func TestWhatLibbpfsMacrosRead(t *testing.T) {
	for object, want := range map[string]struct {
		program string
		by      hook.Registers
	}{"usdt": {"fires", hook.InContext}, "ksyscall": {"entry", hook.InArgument}} {
		body, err := corpus.Objects.ReadFile("testdata/" + object + ".o")
		if err != nil {
			t.Fatal(err)
		}
		all := facts(t, body)
		p, _ := all.Program(want.program)
		if !slices.Equal(p.ReadsRegistersBy, []hook.Registers{want.by}) || !p.ReadsKernelMemory {
			t.Errorf("%s reads the kernel by %v and registers by %v", object, p.ReadsKernelMemoryBy, p.ReadsRegistersBy)
		}
	}
}

// TestEveryHelperIsDecided has each helper that the table calls a reader of the kernel's
// memory count as one, but for those whose result is followed.
func TestEveryHelperIsDecided(t *testing.T) {
	for _, h := range Helpers() {
		if reads := helperReads(h); h.Risk == ReadsKernelMemory && !reads && h.Name != "bpf_get_current_task_btf" {
			t.Errorf("%s reads the kernel's memory, and does not count", h.Name)
		}
	}
}

func TestWhatRepeatsIsKnown(t *testing.T) {
	kfunc := func(name string) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: -1}.WithReference(name)
	}
	for sentence, c := range map[string]struct {
		does asm.Instruction
		want string
	}{
		"a call":                {asm.FnKtimeGetNs.Call(), "[]"},
		"a loop":                {asm.FnLoop.Call(), "[bpf_loop]"},
		"entries of a map":      {asm.FnForEachMapElem.Call(), "[bpf_for_each_map_elem]"},
		"entries of a ring":     {asm.FnUserRingbufDrain.Call(), "[bpf_user_ringbuf_drain]"},
		"numbers":               {kfunc("bpf_iter_num_next"), "[bpf_iter_num_next]"},
		"the begin of numbers":  {kfunc("bpf_iter_num_new"), "[]"},
		"a jump without an end": {asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND)}, "[may_goto]"},
	} {
		if got := fmt.Sprint(inspectedOne(t, ebpf.Syscall, "syscall", c.does).RepeatsBy); got != c.want {
			t.Errorf("%s: it repeats by %s, want %s", sentence, got, c.want)
		}
	}
}

func TestSubjectsOfPrograms(t *testing.T) {
	for sentence, c := range map[string]struct {
		kind    ebpf.ProgramType
		section string
		call    asm.Instruction
		subject hook.Subject
		async   []string
	}{
		"a uprobe":                         {ebpf.Kprobe, "uprobe//bin/x:f", asm.FnLoop.Call(), hook.Current, nil},
		"one with a timer":                 {ebpf.Kprobe, "uprobe//bin/x:f", asm.FnTimerSetCallback.Call(), hook.Any, []string{"bpf_timer_set_callback"}},
		"a packet with a timer":            {ebpf.XDP, "xdp", asm.FnTimerSetCallback.Call(), hook.Any, []string{"bpf_timer_set_callback"}},
		"XDP for an entry of a device map": {ebpf.XDP, "xdp/devmap", asm.FnKtimeGetNs.Call(), hook.Packet, nil},
		"a section that says of no hook":   {ebpf.Kprobe, "mine", asm.FnKtimeGetNs.Call(), hook.Any, nil},
		"a section without a target":       {ebpf.TracePoint, "tracepoint", asm.FnKtimeGetNs.Call(), hook.Any, nil},
	} {
		p := inspectedOne(t, c.kind, c.section, c.call)
		if p.Subject != c.subject || fmt.Sprint(p.AsyncCallbacks) != fmt.Sprint(c.async) {
			t.Errorf("%s: %s, later by %v", sentence, p.Subject, p.AsyncCallbacks)
		}
	}
	p := facts(t, programs.Object("tracepoint_bare")).Programs[0]
	if at := p.SubjectAt("tracepoint", "syscalls/sys_enter_openat"); at != hook.Current {
		t.Errorf("where it is attached it sees %s", at)
	}
	p.AsyncCallbacks = []string{"bpf_wq_set_callback_impl"}
	if at := p.SubjectAt("tracepoint", "syscalls/sys_enter_openat"); at != hook.Any {
		t.Errorf("with a work queue it sees %s", at)
	}
}
