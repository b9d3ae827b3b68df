package cgrouplsm

import (
	"bytes"
	"errors"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// attributesOfLoad are those of BPF_PROG_LOAD: the members of union bpf_attr (include/uapi/linux/bpf.h) up to
// the attach target. Pointers have eight bytes on the architectures that Skep is made for.
type attributesOfLoad struct {
	programType, instructionCount uint32
	instructions, license         unsafe.Pointer
	logLevel, logSize             uint32
	log                           unsafe.Pointer
	kernelVersion, flags          uint32
	name                          [unix.BPF_OBJ_NAME_LEN]byte
	interfaceIndex, attachType    uint32
	typesFD, functionSize         uint32
	functions                     unsafe.Pointer
	functionCount, lineSize       uint32
	lines                         unsafe.Pointer
	lineCount, attachTypeID       uint32
	attachTypesFD, _              uint32
}

// Bounds of the verifier's log, in bytes. A kernel before 6.4 keeps its begin and reports what
// has no place as ENOSPC.
const (
	firstLog = 64 << 10
	mostLog  = 16 << 20
)

// mostAttempts is how often the kernel is asked again that was interrupted by a signal, as
// the runtime sends them; libbpf asks five times.
const mostAttempts = 30

func attributes(spec *ebpf.ProgramSpec, code []byte, hook btf.TypeID) *attributesOfLoad {
	license := append([]byte(spec.License), 0)
	attr := &attributesOfLoad{
		programType: uint32(spec.Type), instructionCount: uint32(len(code) / asm.InstructionSize),
		instructions: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license[0]), //nolint:gosec // the kernel reads them
		flags: spec.Flags, attachType: uint32(spec.AttachType), attachTypeID: uint32(hook),
	}
	copy(attr.name[:len(attr.name)-1], objectName(spec.Name))
	return attr
}

// objectName is a name with the characters that the kernel takes.
func objectName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, name)
}

// describe adds the type information.
func (a *attributesOfLoad) describe(types *btf.Handle, functions, lines []byte) {
	a.typesFD = uint32(types.FD())
	if len(functions) > 0 {
		a.functionSize, a.functionCount = btf.FuncInfoSize, uint32(len(functions))/btf.FuncInfoSize
		a.functions = unsafe.Pointer(&functions[0]) //nolint:gosec // as above
	}
	if len(lines) > 0 {
		a.lineSize, a.lineCount, a.lines = btf.LineInfoSize, uint32(len(lines))/btf.LineInfoSize, unsafe.Pointer(&lines[0]) //nolint:gosec // as above
	}
}

// load asks the kernel, and once more for the verifier's log where it rejects the program. Where
// the log is empty, the verifier was not asked, and the error is the kernel's alone.
func (a *attributesOfLoad) load() (*ebpf.Program, error) {
	program, err := a.ask()
	if err == nil || errors.Is(err, unix.ENOMEM) {
		return program, err
	}
	for size := firstLog; size <= mostLog; size *= 4 {
		log := make([]byte, size)
		a.logLevel, a.logSize, a.log = 1, uint32(size), unsafe.Pointer(&log[0]) //nolint:gosec // bounded above
		again, rejection := a.ask()
		if rejection == nil {
			// What failed before was for a moment.
			return again, nil
		}
		if !errors.Is(rejection, unix.ENOSPC) || size == mostLog {
			return nil, said(err, log)
		}
	}
	return nil, err
}

// ask is BPF_PROG_LOAD.
func (a *attributesOfLoad) ask() (*ebpf.Program, error) {
	for attempt := 1; ; attempt++ {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a)) //nolint:gosec // union bpf_attr
		switch {
		case errno == 0:
			return plain.Of(ebpf.NewProgramFromFD(int(fd)))
		case (errno == unix.EAGAIN || errno == unix.EINTR) && attempt < mostAttempts:
			continue
		}
		return nil, errno
	}
}

// said is an error with the lines of a log that ends with a zero.
func said(err error, log []byte) error {
	log, _, _ = bytes.Cut(log, []byte{0})
	text := strings.TrimSpace(string(log))
	if text == "" {
		return err
	}
	rejection := &ebpf.VerifierError{Cause: err}
	for line := range strings.SplitSeq(text, "\n") {
		rejection.Log = append(rejection.Log, strings.TrimRight(line, "\t\r\v\n "))
	}
	return rejection
}
