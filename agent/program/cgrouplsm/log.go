package cgrouplsm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// WithLog returns the library's error about a program with the verifier's last words, where the
// library drops them: the verifier answers EFAULT to a program that is too complex for it
// (push_stack of kernel/bpf/verifier.c), and the library keeps no log of that. Maps are those of
// the program by their names, as for Load. An error that has a log, or that the kernel does not
// repeat, is returned as it is.
func WithLog(err error, spec *ebpf.ProgramSpec, maps map[string]*ebpf.Map, cache *btf.Cache) error {
	if !errors.Is(err, unix.EFAULT) || errors.As(err, new(*ebpf.VerifierError)) {
		return err
	}
	if cache == nil {
		cache = btf.NewCache()
	}
	attr, done, failed := prepare(spec, targetOf(spec), maps, cache)
	if failed != nil {
		return err
	}
	defer done()
	said := attr.lastWords()
	runtime.KeepAlive(maps)
	rejection := new(ebpf.VerifierError)
	if !errors.As(said, &rejection) {
		return err
	}
	rejection.Log = slices.DeleteFunc(rejection.Log, isStatistic)
	return fmt.Errorf("load program %s%w", spec.Name, rejection)
}

// targetOf is the type in the kernel that a program names when it is loaded, as the library
// looks for it; empty where it names none.
func targetOf(spec *ebpf.ProgramSpec) string {
	switch {
	case spec.AttachTo == "" || spec.Type != ebpf.Tracing && spec.Type != ebpf.LSM:
		return ""
	case spec.Type == ebpf.LSM:
		return "bpf_lsm_" + spec.AttachTo
	case spec.AttachType == ebpf.AttachTraceRawTp:
		return "btf_trace_" + spec.AttachTo
	case spec.AttachType == ebpf.AttachTraceIter:
		return "bpf_iter_" + spec.AttachTo
	}
	return spec.AttachTo
}

// isStatistic reports whether a line of the verifier's is about its work, not about the program.
func isStatistic(line string) bool {
	return slices.ContainsFunc([]string{"verification time ", "stack depth ", "processed "}, func(s string) bool { return strings.HasPrefix(line, s) })
}

// lastWords asks the kernel for no more than why it rejects the program.
func (a *attributesOfLoad) lastWords() error {
	log := make([]byte, firstLog)
	// BPF_LOG_STATS: the log has no instructions, and so has room for the reason.
	const statistics = 4
	a.logLevel, a.logSize, a.log = statistics, firstLog, unsafe.Pointer(&log[0]) //nolint:gosec // the kernel writes it
	program, err := a.ask()
	if err == nil {
		return program.Close()
	}
	return said(err, log)
}
