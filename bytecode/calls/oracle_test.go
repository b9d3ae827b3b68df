package calls_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

// TestTheLengthOfAPrintTellsMemory has a program print the name of its task by the address, and
// return what bpf_trace_printk returns.
func TestTheLengthOfAPrintTellsMemory(t *testing.T) {
	need.Kernel(t)
	offset := offsetOfName(t)
	formats, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: []byte("%s\x00\x00\x00\x00\x00\x00")}}})
	if err != nil {
		t.Fatal(err)
	}
	defer formats.Close()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{
		asm.FnGetCurrentTask.Call(),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.Add.Imm(asm.R3, offset),
		asm.LoadMapValue(asm.R1, formats.FD(), 0),
		asm.Mov.Imm(asm.R2, 3),
		asm.FnTracePrintk.Call(),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	short, long := printed(t, p, "a"), printed(t, p, "abcdefg")
	if long-short != 6 {
		t.Errorf("a name of 1 byte gives %d, one of 7 bytes %d: this kernel tells no length", short, long)
	}
}

// printed is what the program returns in a thread of that name.
func printed(t *testing.T, p *ebpf.Program, name string) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before [16]byte
	if err := unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&before)), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&before)), 0, 0, 0) }()
	returned, err := p.Run(&ebpf.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return int(int32(returned))
}

// offsetOfName is where a task has its name.
func offsetOfName(t *testing.T) int32 {
	t.Helper()
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skipf("SKIPPED: needs a kernel with BTF: %v", err)
	}
	var task *btf.Struct
	if err := types.TypeByName("task_struct", &task); err != nil {
		t.Fatal(err)
	}
	for _, m := range task.Members {
		if m.Name == "comm" {
			return int32(m.Offset.Bytes())
		}
	}
	t.Fatal("a task has no name")
	return 0
}
