package guard

import (
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode"
)

// maxSteps is how far above a task's cgroup one is found by its parents. A task that is
// deeper below a level costs a call of the helper.
const maxSteps = 8

// fields are the offsets in this kernel, in bytes, of what leads from a task to the ids of
// its cgroups.
type fields struct{ taskCgroups, setCgroup, level, node, parent, id int16 }

// kernelFields reads the offsets once: they are those of the kernel that runs. It is nil
// where its type information lacks one.
var kernelFields = sync.OnceValue(func() *fields {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil
	}
	var f fields
	for _, one := range []struct {
		to           *int16
		name, member string
	}{
		{&f.taskCgroups, "task_struct", "cgroups"},
		{&f.setCgroup, "css_set", "dfl_cgrp"},
		{&f.level, "cgroup", "level"},
		{&f.node, "cgroup", "kn"},
		// Since 6.15 __parent.
		{&f.parent, "kernfs_node", "parent"},
		{&f.id, "kernfs_node", "id"},
	} {
		var in *btf.Struct
		if err := types.TypeByName(one.name, &in); err != nil {
			return nil
		}
		at := slices.IndexFunc(in.Members, func(m btf.Member) bool { return strings.TrimPrefix(m.Name, "__") == one.member })
		if at < 0 || in.Members[at].Offset.Bytes() > 1<<15-1 {
			return nil
		}
		*one.to = int16(in.Members[at].Offset.Bytes())
	}
	return &f
})

// walkable is the fields that a program may read, or nil. It reads what
// bpf_get_current_ancestor_cgroup_id reads, and as that does within a read-side section of
// RCU: a sleepable program runs in none, and could meet the memory of another task's
// cgroups. To programs under another licence than GPL the kernel gives no task.
func walkable(spec *ebpf.ProgramSpec) *fields {
	if spec.Flags&unix.BPF_F_SLEEPABLE != 0 || !bytecode.GPLCompatible(spec.License) {
		return nil
	}
	return kernelFields()
}

// find loads the current task's cgroup into R9.
func (f *fields) find() asm.Instructions {
	if f == nil {
		return nil
	}
	return asm.Instructions{
		asm.FnGetCurrentTaskBtf.Call(),
		asm.LoadMem(asm.R9, asm.R0, f.taskCgroups, asm.DWord),
		asm.LoadMem(asm.R9, asm.R9, f.setCgroup, asm.DWord),
	}
}

// ancestor loads into R0 the id of the current task's ancestor cgroup at the level in R1, or
// 0: by the fields, or by the helper where there are none or the task is far below. Each
// call of the helper returns several times, which costs more than all steps. They are no
// loop: the verifier of 6.1 fails with EFAULT on one.
func (f *fields) ancestor() asm.Instructions {
	helper := asm.FnGetCurrentAncestorCgroupId.Call()
	if f == nil {
		return asm.Instructions{helper}
	}
	const found, end = 6 + 2*maxSteps, 6 + 2*maxSteps + 3
	insns := asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		asm.LoadMem(asm.R2, asm.R9, f.level, asm.Word),
		asm.Sub.Reg(asm.R2, asm.R1),
		jump(asm.JSLT, asm.R2, 0, 3, end),
		jump(asm.JSGT, asm.R2, maxSteps, 4, found+2),
		asm.LoadMem(asm.R3, asm.R9, f.node, asm.DWord),
	}
	for step := range maxSteps {
		insns = append(insns, jump(asm.JEq, asm.R2, int64(step), len(insns), found), asm.LoadMem(asm.R3, asm.R3, f.parent, asm.DWord))
	}
	return append(insns,
		asm.LoadMem(asm.R0, asm.R3, f.id, asm.DWord),
		jump(asm.Ja, asm.R0, 0, found+1, end),
		helper)
}
