package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

func tracepoint(h hook.Hook, r Request) (pins.Held, error) {
	group, name, ok := strings.Cut(r.Attachment.Tracepoint, "/")
	if !ok || group == "" || name == "" {
		return nil, fmt.Errorf("tracepoint %q is not category/name, such as syscalls/sys_enter_execve", r.Attachment.Tracepoint)
	}
	// The library looks for tracefs once, and remembers that it was not there.
	if !tracefsMounted() {
		return nil, errNoTracefs
	}
	l, err := plain.Of(link.Tracepoint(group, name, r.Program, nil))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, noTracepoint(h, r.Attachment.Tracepoint)
	case strings.Contains(err.Error(), unix.EACCES.Error()) && attachesTrivial(h, r.Attachment.Tracepoint):
		// perf_event_set_bpf_prog of kernel/events/core.c compares what the program reads. The
		// library passes its answer on as text.
		return nil, lackingPart(h, fmt.Sprintf("has a shorter record for tracepoint %s than this program reads; build the program for the fields that "+
			"events/%[1]s/format of tracefs lists", r.Attachment.Tracepoint), err)
	}
	return nil, err
}

func rawTracepoint(h hook.Hook, r Request) (pins.Held, error) {
	name := r.Attachment.Tracepoint
	l, err := plain.Of(link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: r.Program}))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, noTracepoint(h, name)
	case !errors.Is(err, unix.EINVAL):
		return nil, err
	case h.ProgramType == ebpf.RawTracepointWritable:
		// __bpf_probe_register of kernel/trace/bpf_trace.c compares what the program accesses.
		return nil, lackingPart(h,
			fmt.Sprintf("lets no program write to tracepoint %s, or fewer bytes than this one accesses; name a writable tracepoint, such as bpf_test_finish", name), err)
	}
	return nil, lackingPart(h, fmt.Sprintf("gives tracepoint %s %s than this program reads; build it for fewer, or as tp_btf, whose arguments the verifier checks",
		name, fewerArguments(name)), err)
}

// fewerArguments says how many arguments the kernel's BTF lists for a tracepoint.
func fewerArguments(tracepoint string) string {
	const fewer = "fewer arguments"
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return fewer
	}
	var typedef *btf.Typedef
	if err := spec.TypeByName("btf_trace_"+tracepoint, &typedef); err != nil {
		return fewer
	}
	pointer, ok := typedef.Type.(*btf.Pointer)
	if !ok {
		return fewer
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok || len(proto.Params) == 0 {
		return fewer
	}
	// The first parameter is the kernel's own.
	return fmt.Sprintf("%d arguments, which is fewer", len(proto.Params)-1)
}

// CheckTracepoint fails with ErrTarget where the kernel is known to lack a tracepoint.
func CheckTracepoint(h hook.Hook, name string) error {
	if h.Name != "tracepoint" {
		return checkRawTracepoint(h, name)
	}
	if !tracefsMounted() {
		return nil
	}
	for _, dir := range tracefsEvents {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return noTracepoint(h, name)
}

// checkRawTracepoint asks the kernel for a raw tracepoint. No file lists all of them: tracefs
// has no bare ones, such as pelt_cfs_tp.
func checkRawTracepoint(h hook.Hook, name string) error {
	raw, _ := hook.Lookup("raw_tp")
	p, err := trivial(raw, "")
	if err != nil {
		return nil //nolint:nilerr // it is not known
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: p})
	closed := p.Close()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noTracepoint(h, name)
	case err != nil:
		return nil //nolint:nilerr // it is not known
	}
	return errors.Join(closed, l.Close())
}

// attachesTrivial reports whether a program that reads nothing attaches to the tracepoint.
func attachesTrivial(h hook.Hook, tracepoint string) bool {
	p, err := trivial(h, "")
	if err != nil {
		return false
	}
	group, name, _ := strings.Cut(tracepoint, "/")
	l, err := link.Tracepoint(group, name, p, nil)
	if err == nil {
		err = l.Close()
	}
	return errors.Join(err, p.Close()) == nil
}

// noTracepoint is an ErrTarget that names tracepoints near the one that is not there.
func noTracepoint(h hook.Hook, name string) error {
	near := text.NewNearest(name)
	for _, dir := range tracefsEvents {
		// A folder that cannot be read has no names.
		ids, _ := filepath.Glob(filepath.Join(dir, "*", "*", "id"))
		for _, id := range ids {
			event := strings.TrimPrefix(filepath.Dir(id), dir+"/")
			group, short, _ := strings.Cut(event, "/")
			switch {
			case h.Name == "tracepoint":
				near.Add([]byte(event))
			case group != "syscalls": // Those are made of two raw ones, sys_enter and sys_exit.
				near.Add([]byte(short))
			}
		}
	}
	return fmt.Errorf("%w: the kernel has no tracepoint %s%s", ErrTarget, name, near)
}

// errNoTracefs is the error of a tracepoint that has no number without tracefs. The agent
// tries again, and finds tracefs once it is mounted.
var errNoTracefs = errors.New("tracefs is not mounted: run `mount -t tracefs tracefs /sys/kernel/tracing`")

// tracefsEvents are where tracefs shows tracepoints.
var tracefsEvents = []string{"/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"}

// tracefsMounted reports whether the kernel's tracepoints are there, be it that they may
// not be seen.
func tracefsMounted() bool {
	for _, dir := range tracefsEvents {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// tracing attaches where the program was loaded for: its target is in it.
func tracing(h hook.Hook, r Request) (pins.Held, error) {
	l, err := plain.Of(link.AttachTracing(link.TracingOptions{Program: r.Program, AttachType: h.AttachType}))
	if errors.Is(err, unix.EBUSY) && h.TakesFunctions() && r.Host.Functions != nil {
		// A function that begins with no place for ftrace (bpf_arch_text_poke of arch/x86/net/bpf_jit_comp.c).
		if untraced := r.Host.Functions.Explain("", r.Attachment.Function); untraced != nil {
			return nil, fmt.Errorf("%w: %w", ErrTarget, untraced)
		}
	}
	return l, err
}

// missing marks an error that says there is no such tracepoint or file.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}
