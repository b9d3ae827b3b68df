package show

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// mapInfo is the beginning of struct bpf_map_info, of which the library does not give the last three.
type mapInfo struct {
	_                       [64]byte
	btf, keyType, valueType uint32
	_                       uint32
}

// objInfo is the part of union bpf_attr for BPF_OBJ_GET_INFO_BY_FD.
type objInfo struct {
	fd, size uint32
	info     unsafe.Pointer
}

// typesOf are the types of a map's keys and values by the BTF that the kernel has of it; nil is not
// known.
func typesOf(m *ebpf.Map) (key, value btf.Type, err error) {
	var info mapInfo
	attr := objInfo{fd: uint32(m.FD()), size: uint32(unsafe.Sizeof(info))}
	attr.info = unsafe.Pointer(&info) //nolint:gosec // the kernel writes it
	at := unsafe.Pointer(&attr)       //nolint:gosec // the kernel reads it
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(at), unsafe.Sizeof(attr))
	runtime.KeepAlive(m)
	if errno != 0 {
		return nil, nil, fmt.Errorf("ask the kernel for the types of a map: %w", errno)
	}
	if info.btf == 0 {
		return nil, nil, nil
	}
	handle, err := plain.Of(btf.NewHandleFromID(btf.ID(info.btf)))
	if err != nil {
		return nil, nil, err
	}
	defer handle.Close()
	spec, err := plain.Of(handle.Spec(nil))
	if err != nil {
		return nil, nil, err
	}
	known := func(id uint32) btf.Type {
		t, err := spec.TypeByID(btf.TypeID(id))
		if _, isVoid := t.(*btf.Void); err != nil || isVoid {
			return nil
		}
		return t
	}
	return known(info.keyType), known(info.valueType), nil
}

// typeOfPrograms is a type by its name, as the BTF of one of the programs has it.
func typeOfPrograms(programs []uint32, name string) (btf.Type, error) {
	for _, id := range programs {
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			continue
		}
		t, err := typeOfProgram(program, name)
		_ = program.Close()
		if err == nil {
			return t, nil
		}
	}
	return nil, absent("the BTF of the programs that use the map has no type %s", name)
}

func typeOfProgram(program *ebpf.Program, name string) (btf.Type, error) {
	handle, err := program.Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	spec, err := handle.Spec(nil)
	if err != nil {
		return nil, err
	}
	return spec.AnyTypeByName(strings.TrimPrefix(name, "struct "))
}

// bytesOfHex reads hex digits, with spaces between them or not, that are a JSON string.
func bytesOfHex(text string, size int) ([]byte, error) {
	var digits string
	if err := json.Unmarshal([]byte(text), &digits); err != nil {
		digits = text
	}
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(digits, "0x"), " ", ""))
	if err != nil || len(b) != size {
		return nil, fmt.Errorf("the map has no BTF: give the key as the %d hex digits of its bytes", 2*size)
	}
	return b, nil
}
