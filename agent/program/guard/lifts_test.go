package guard_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/test/harness/tasks"
)

// TestAProgramOfAPodLiftsWhatAContainerIsDenied shows why the gate denies bpf_set_retval to a
// namespace: a container runtime denies devices by a program at the cgroup of the container, and the
// kernel runs those at the cgroup of the pod after it.
func TestAProgramOfAPodLiftsWhatAContainerIsDenied(t *testing.T) {
	pod := tasks.Cgroup(t, filepath.Join(tasks.Root(t), "lifts"))
	container := tasks.Cgroup(t, filepath.Join(pod, "container"))
	attach := func(cgroup string, insns ...asm.Instruction) {
		t.Helper()
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, AttachType: ebpf.AttachCGroupDevice, License: "GPL", Instructions: insns})
		if err != nil {
			t.Fatal(err)
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupDevice, Program: p})
		if err != nil {
			t.Fatal(errors.Join(err, p.Close()))
		}
		t.Cleanup(func() { _ = errors.Join(l.Close(), p.Close()) })
	}
	task := tasks.Start(t, container)
	attach(container, asm.Mov.Imm(asm.R0, 0), asm.Return())
	if task.Can("open") {
		t.Fatal("a task opens a device that its container is denied")
	}
	attach(pod, asm.Mov.Imm(asm.R0, 1), asm.Return())
	if task.Can("open") {
		t.Fatal("a program that allows everything lifts the denial")
	}
	attach(pod, asm.Mov.Imm(asm.R1, 0), asm.FnSetRetval.Call(), asm.Mov.Imm(asm.R0, 1), asm.Return())
	if !task.Can("open") {
		t.Error("bpf_set_retval does not lift the denial on this kernel")
	}
}
