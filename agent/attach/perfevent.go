package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/hook"
)

// maxThreads bounds the threads of one process that are sampled: each has a link.
const maxThreads = 256

// perfEvent opens the event and links the program to it. The link holds the event, which
// so outlives this process.
func perfEvent(h hook.Hook, r Request) (pins.Held, error) {
	at := r.Attachment
	fd, err := openEvent(h, at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	l, err := plain.Of(link.AttachRawLink(link.RawLinkOptions{Target: fd, Program: r.Program, Attach: ebpf.AttachPerfEvent}))
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("enable the event: %w", err), l.Close())
	}
	return l, nil
}

// openEvent opens an event that is not enabled yet.
func openEvent(h hook.Hook, at plan.Attachment) (int, error) {
	event, ok := hook.LookupEvent(at.Event)
	if !ok {
		return -1, fmt.Errorf("no perf event is called %q", at.Event)
	}
	rate, err := maxSampleRate()
	if err != nil {
		return -1, err
	}
	if err := tooOften(event, at.Target, rate); err != nil {
		return -1, err
	}
	attr := &unix.PerfEventAttr{Type: event.Type, Config: event.Config, Size: unix.PERF_ATTR_SIZE_VER0, Sample: uint64(at.Period), Bits: unix.PerfBitDisabled}
	if at.Frequency != 0 {
		attr.Sample, attr.Bits = uint64(at.Frequency), attr.Bits|unix.PerfBitFreq
	}
	pid, cpu := -1, at.CPU
	if at.PID != 0 {
		pid, cpu = int(at.Thread), -1
		if began, err := beganAt(at.PID, at.Thread); err != nil || began != at.Began {
			return -1, fmt.Errorf("sample process %d: %w: thread %d ended", at.PID, ErrTarget, at.Thread)
		}
	}
	fd, err := unix.PerfEventOpen(attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENODEV):
		return -1, fmt.Errorf("sample %s: %w: %w", at.Target, ErrTarget, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return -1, lackingPart(h,
			fmt.Sprintf("counts no %s: the machine has no such counter, as is usual in a virtual machine; name an event of the kernel, such as cpu-clock", event.Name),
			err)
	case errors.Is(err, unix.EACCES) && paranoid() > 2:
		return -1, fmt.Errorf("sample %s where kernel.perf_event_paranoid is above 2: %w", at.Target, rights.ExplainAttach(err, []rights.Capability{rights.SysAdmin}))
	case err != nil:
		return -1, fmt.Errorf("sample %s: %w", at.Target, err)
	}
	return fd, nil
}

// paranoid is the sysctl kernel.perf_event_paranoid, 0 where it cannot be read. Above 2,
// kernels of Debian and its kin ask for CAP_SYS_ADMIN.
func paranoid() int {
	text, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return 0
	}
	level, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return level
}

// tryEvent opens an event that every kernel counts, which some kernels deny.
func tryEvent(h hook.Hook) error {
	if err := plain.Error(features.HaveProgramType(h.ProgramType)); err != nil {
		return err
	}
	all, err := OnEvent(plan.Attachment{Target: plan.Target{Event: "cpu-clock", Frequency: 1}})
	if err != nil {
		return err
	}
	fd, err := openEvent(h, all[0])
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// tooOften fails where a program would run more often in a second than the kernel allows.
// A period of another event than a clock has no such bound: the kernel throttles it.
func tooOften(event hook.Event, t plan.Target, rate int64) error {
	field, times := "frequency", int64(t.Frequency)
	if t.Period != 0 && event.IsClock() {
		field, times = "period", 1e9/t.Period
	}
	if times <= rate {
		return nil
	}
	return fmt.Errorf("perfEvent.%s samples %s %d times a second, and this node allows %d (kernel.perf_event_max_sample_rate); sample less often, "+
		"or raise it: `sysctl -w kernel.perf_event_max_sample_rate=%d`",
		field, event.Name, times, rate, times)
}

// maxSampleRate is how many samples a second the kernel takes. It lowers the number itself
// where samples take too long.
func maxSampleRate() (int64, error) {
	text, err := os.ReadFile("/proc/sys/kernel/perf_event_max_sample_rate")
	if err != nil {
		return 0, fmt.Errorf("read how often the kernel samples: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// OnEvent returns one attachment for each CPU that is online or, where the attachment is
// for a process, for each of its threads. It fails with ErrTarget where there is no such
// process.
func OnEvent(base plan.Attachment) ([]plan.Attachment, error) {
	if base.PID != 0 {
		return onThreads(base)
	}
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("read which CPUs are online: %w", err)
	}
	cpus, err := parseCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, err
	}
	var all []plan.Attachment
	for _, cpu := range cpus {
		base.CPU, base.Began = cpu, onlineSince(cpu)
		all = append(all, base)
	}
	return all, nil
}

// onlineSince returns a number that is another one when a CPU went offline and came back,
// which ends the events on it: sysfs makes its topology anew (drivers/base/topology.c).
func onlineSince(cpu int) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology", cpu), &st); err != nil {
		return 0
	}
	return st.Ino
}

// parseCPUs reads a list such as 0-3,8 (Documentation/admin-guide/cputopology.rst).
func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, lastErr := strconv.ParseUint(to, 10, 16)
		if err := errors.Join(err, lastErr); err != nil {
			return nil, fmt.Errorf("read list of CPUs %q: %w", list, err)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}

func onThreads(base plan.Attachment) ([]plan.Attachment, error) {
	if err := reachable(base); err != nil {
		return nil, err
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", base.PID))
	if err != nil {
		return nil, fmt.Errorf("find process %d: %w", base.PID, missing(err))
	}
	if len(threads) > maxThreads {
		return nil, fmt.Errorf("process %d has %d threads, and Skep samples those of a process with at most %d; leave out pid, "+
			"and have the program look at the process", base.PID, len(threads), maxThreads)
	}
	var all []plan.Attachment
	for _, thread := range threads {
		id, err := strconv.ParseInt(thread.Name(), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read threads of process %d: %w", base.PID, err)
		}
		one := base
		one.Thread = int32(id)
		if one.Began, err = beganAt(one.PID, one.Thread); errors.Is(err, ErrTarget) {
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("find process %d: %w: it ended", base.PID, ErrTarget)
	}
	return all, nil
}

// beganAt tells when a thread began, in clock ticks since boot: the kernel gives its
// number to another after its end. It fails with ErrTarget where the thread ended.
func beganAt(pid, thread int32) (uint64, error) {
	path := filepath.Join("/proc", strconv.Itoa(int(pid)), "task", strconv.Itoa(int(thread)), "stat")
	text, err := os.ReadFile(path)
	if errors.Is(err, unix.ESRCH) {
		return 0, errors.Join(ErrTarget, err)
	}
	if err != nil {
		return 0, missing(err)
	}
	// The name, in parentheses, may hold anything (proc_pid_stat(5)).
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const state, starttime = 0, 19
	if len(fields) <= starttime {
		return 0, fmt.Errorf("read %s: it has %d fields", path, len(fields))
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, fmt.Errorf("find thread %d: %w: it ended", thread, ErrTarget)
	}
	return strconv.ParseUint(fields[starttime], 10, 64)
}
