// Package reason says why the kernel or cilium/ebpf reject a program, in words that need no
// knowledge of the library, and what its author can do about it. It decides nothing.
package reason

import (
	"errors"
	"regexp"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// plainError has the text of an error without the library's names.
type plainError struct {
	text string
	err  error
}

// Error implements error.
func (e *plainError) Error() string { return e.text }

// Unwrap returns the error as it was.
func (e *plainError) Unwrap() error { return e.err }

// Plain returns the error with a text that has no name of the library's own: of its options,
// its types, and the Go types of values. An error without such names stays as it is.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	text := said
	for _, w := range words {
		text = w.of.ReplaceAllString(text, w.plain)
	}
	if text == said {
		return err
	}
	return &plainError{text, err}
}

// words are the library's, and what they mean. The texts in parentheses are advice to
// who writes Go, or wrong on the kernels that Skep runs on: since Linux 5.11 no limit on
// locked memory holds for BPF.
var words = []struct {
	of    *regexp.Regexp
	plain string
}{
	{regexp.MustCompile(` \(MEMLOCK may be too low, consider rlimit\.RemoveMemlock\)`), ""},
	{regexp.MustCompile(` \(hit verifier bug, increase LogSizeStart to fit the log and check dmesg\)`), ", and the verifier said no more"},
	{regexp.MustCompile(` \(bug: hit \d+ verifier attempts\)`), ", and the verifier's log did not end"},
	{regexp.MustCompile(` \(MaxEntries may be incorrectly set to zero\)`), " (max_entries may be 0)"},
	{regexp.MustCompile(` \((?:invalid pid, )?missing (?:kernel )?symbol or prog's AttachType not \w+\?\)`),
		" (a function is missing, or the program is of another hook)"},
	{regexp.MustCompile(`: missing MapOptions\.PinPath`), ": Skep pins maps itself; leave out LIBBPF_PIN_BY_NAME"},
	{regexp.MustCompile(`\bMaxEntries\b`), "max_entries"},
	{regexp.MustCompile(`\bKeySize\b`), "key_size"},
	{regexp.MustCompile(`\bValueSize\b`), "value_size"},
	{regexp.MustCompile(`\bInnerMap\b`), "an inner map"},
	{regexp.MustCompile(`\bProgramArray\b`), "BPF_MAP_TYPE_PROG_ARRAY"},
	{regexp.MustCompile(`\bProgramSpec and Program tags\b`), "tags of the object and of the program"},
	{regexp.MustCompile(`\bCollectionSpec\b`), "the object"},
	{regexp.MustCompile(`\bretprobeMaxActive\b`), "a number of concurrent return probes"},
	{regexp.MustCompile(`\bObjInfo\b`), "the kernel's answer"},
	{regexp.MustCompile(`\bfield RefCtrOffsets\b`), "the list of reference counters"},
	{regexp.MustCompile(`\btargetProg\b`), "target program"},
	{regexp.MustCompile(`\bAttachTo\b`), "the target"},
	{regexp.MustCompile(`\bfdArray\b`), "one program"},
	{regexp.MustCompile(`\bkfuncMetaKey doesn't contain kfuncMeta\b`), "a call of a kernel function has no name"},
	{regexp.MustCompile(`\bunsafeMemory\b`), "shared memory"},
	{regexp.MustCompile(`\bMaxInt(\d+)\b`), "$1 bits"},
	// Types of Go: *btf.Struct, btfEnum64.
	{regexp.MustCompile(`\*?\b(?:btf|asm|ebpf|link|sys|internal|unix)\.([A-Z]\w*)`), "$1"},
	{regexp.MustCompile(`\bbtf[A-Z]\w*`), "BTF record"},
	{regexp.MustCompile(`\b(?:VarSecInfo|FuncInfo|LineInfo|FuncProto|declTag)\b`), "BTF record"},
}

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
	case errors.Is(err, unix.EFAULT):
		return "the program is too complex for this kernel's verifier, or met a fault of it, which the kernel's log (dmesg) names: " +
			"write loops with bpf_loop or bpf_for, or keep the application to nodes with another kernel (nodeSelector)"
	case errors.Is(err, unix.E2BIG) && errors.As(err, new(*ebpf.VerifierError)):
		return "the program has more instructions than the kernel takes, 1000000: make it smaller"
	}
	return ""
}
