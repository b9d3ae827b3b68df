package cost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/bytecode/plain"
)

// sample is what the kernel has counted of a program, and when it was asked.
type sample struct {
	id                        uint32
	runs, nanoseconds, misses uint64
	at                        time.Time
}

// difference is what a program did between two samples, which are length apart. Its misses are those since it was loaded.
type difference struct {
	Sample
	misses uint64
	length time.Duration
}

// read appends a sample of each program to to, in the order of ids. It returns how many were left out. A program is kept loaded only while it is read.
func read(ctx context.Context, to []sample) (all []sample, leftOut int, err error) {
	for id := ebpf.ProgramID(0); ; {
		if err := ctx.Err(); err != nil {
			return to, 0, err
		}
		if id, err = plain.Of(ebpf.ProgramGetNextID(id)); errors.Is(err, os.ErrNotExist) {
			return to, leftOut, nil
		} else if err != nil {
			return to, 0, fmt.Errorf("list BPF programs: %w", err)
		}
		if len(to) == MaxPrograms {
			leftOut++
			continue
		}
		one, err := readOne(uint32(id))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return to, 0, fmt.Errorf("read BPF program %d: %w", id, err)
		}
		to = append(to, one)
	}
}

// info is struct bpf_prog_info (include/uapi/linux/bpf.h), up to what is read of it.
type info struct {
	_                         [192]byte
	nanoseconds, runs, misses uint64
}

// readOne asks for one program, by three system calls. The library asks twice more, and allocates.
func readOne(id uint32) (sample, error) {
	open := struct{ id, _, flags uint32 }{id: id}
	fd, err := call(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&open), unsafe.Sizeof(open)) //nolint:gosec // union bpf_attr
	if err != nil {
		return sample{}, err
	}
	defer unix.Close(fd)
	var of info
	ask := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(of)), unsafe.Pointer(&of)} //nolint:gosec // the kernel writes it
	if _, err := call(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&ask), unsafe.Sizeof(ask)); err != nil { //nolint:gosec // union bpf_attr
		return sample{}, err
	}
	runtime.KeepAlive(&of)
	return sample{id, of.runs, of.nanoseconds, of.misses, time.Now()}, nil
}

// call is bpf(2).
func call(command uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	for {
		result, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
		switch errno {
		case 0:
			return int(result), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// differences compares two lists of samples, each in the order of ids. A program that is in the later one alone was loaded between them, and
// counts from zero, over the length of the others. Of an id that another program has now, too.
func differences(before, after []sample) []difference {
	var all []difference
	whole := time.Duration(0)
	if len(before) > 0 && len(after) > 0 {
		whole = after[len(after)-1].at.Sub(before[len(before)-1].at)
	}
	for _, now := range after {
		for len(before) > 0 && before[0].id < now.id {
			before = before[1:]
		}
		was := sample{at: now.at.Add(-whole)}
		if len(before) > 0 && before[0].id == now.id && before[0].runs <= now.runs && before[0].nanoseconds <= now.nanoseconds {
			was = before[0]
		}
		all = append(all, difference{Sample{now.id, now.runs - was.runs, now.nanoseconds - was.nanoseconds}, now.misses, now.at.Sub(was.at)})
	}
	return all
}
