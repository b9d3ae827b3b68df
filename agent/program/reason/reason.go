// Package reason says what the author of a program can do about its rejection by the kernel. It
// decides nothing.
package reason

import (
	"errors"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// generic is the fix of a rejection that says no more than the verifier's log does.
const generic = "change the program at the instruction that the log names, or keep the application to nodes whose kernel takes it (nodeSelector)"

// fixes are by words of the verifier (kernel/bpf/verifier.c).
var fixes = []struct{ words, fix string }{
	{"jumps is too complex", "the verifier keeps at most 8192 branches that it has yet to follow: write the loop with bpf_loop or bpf_for, bound it lower, " +
		"or branch less on values that it does not know"},
	{"BPF program is too large. Processed", "the verifier follows at most 1000000 instructions: write loops with bpf_loop or bpf_for, " +
		"and move what repeats into functions that are not static"},
	{"infinite loop detected", "give the loop a bound that the verifier sees, or write it with bpf_loop or bpf_for"},
	{"back-edge", "give the loop a bound that the verifier sees, or write it with bpf_loop or bpf_for"},
	{"unknown func", "this kernel or hook has no such helper: call another, or keep the application to nodes whose kernel has it (nodeSelector)"},
	{"cannot call GPL-restricted function", "license the program under the GPL (SEC(\"license\")), or leave the helper out"},
}

// How the library begins what it says of a map that the kernel does not make, and of a program that it does not load.
const (
	mapCreate   = "map create: "
	programLoad = "load program: "
)

// ofMap is the fix of a map that the kernel does not make.
func ofMap(err error) string {
	switch {
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOMEM):
		return "give the map fewer entries (maxEntries) or smaller values"
	case errors.Is(err, unix.EINVAL):
		return "compare its key_size, value_size, max_entries and map_flags with what the kernel takes for its type"
	}
	return ""
}

// Fix says what the author of a program can do where the kernel rejected it; log is what the
// verifier said, which may be nothing. It is empty where the error is not about a program.
func Fix(err error, log string) string {
	for _, f := range fixes {
		if strings.Contains(log, f.words) {
			return f.fix
		}
	}
	switch {
	case log != "":
		return generic
	case strings.Contains(err.Error(), mapCreate):
		return ofMap(err)
	case errors.Is(err, unix.EFAULT):
		return "the program is too complex for this kernel's verifier, or met a fault of it, which the kernel's log (dmesg) names: " +
			"write loops with bpf_loop or bpf_for, or keep the application to nodes with another kernel (nodeSelector)"
	case errors.Is(err, unix.E2BIG) && errors.As(err, new(*ebpf.VerifierError)):
		return "the program has more instructions than the kernel takes, 1000000: make it smaller"
	case strings.Contains(err.Error(), programLoad):
		return ofProgram(err)
	}
	return ""
}

// ofProgram is the fix of a program that the kernel does not load, and says nothing of. Package rights has the fix of a missing right.
func ofProgram(err error) string {
	switch {
	case errors.Is(err, unix.ENOMEM):
		return "the kernel has no memory for it now: give the agent's memory cgroup or the node more, or keep less on the node"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return "this kernel takes no program of this type, for this place, or with these flags: keep the application to nodes whose kernel does (nodeSelector)"
	}
	return ""
}
