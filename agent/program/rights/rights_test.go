package rights

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestARefusalSaysWhatIsMissing(t *testing.T) {
	bits := func(all ...Capability) (set uint64) {
		for _, c := range all {
			set |= 1 << c
		}
		return set
	}
	refused := fmt.Errorf("program f: load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	for sentence, tc := range map[string]struct {
		now  process
		need []Capability
		want string
	}{
		"one of two": {
			process{known: true, effective: bits(BPF)}, []Capability{BPF, Perfmon},
			"program f: load program: operation not permitted: this process lacks CAP_PERFMON; grant it",
		},
		"both":                     {process{known: true}, []Capability{BPF, NetAdmin}, "this process lacks CAP_NET_ADMIN and CAP_BPF; grant it"},
		"one beside the great one": {process{known: true, effective: bits(SysAdmin)}, []Capability{BPF, SysPtrace}, "this process lacks CAP_SYS_PTRACE; grant it"},
		"one that stands for all":  {process{known: true, effective: bits(SysAdmin)}, []Capability{BPF, Perfmon}, "it has them; a security module or"},
		"a user namespace":         {process{known: true, effective: ^uint64(0), nested: true}, []Capability{BPF}, "within a user namespace"},
		"a locked kernel":          {process{known: true, effective: bits(BPF), lockdown: "integrity"}, []Capability{BPF}, "locked down (integrity)"},
		"nothing can be read":      {process{}, []Capability{BPF}, "a security module or seccomp filter denies bpf(2)"},
		"no filter":                {process{known: true, effective: ^uint64(0), seccomp: "0"}, []Capability{BPF}, "a security module denies bpf(2)"},
		"a filter": {
			process{known: true, effective: ^uint64(0), seccomp: "2"}, []Capability{BPF}, "or the seccomp filter of this process (Seccomp: 2 in /proc/",
		},
		"a locked kernel, too": {
			process{known: true, effective: ^uint64(0), seccomp: "0", lockdown: "integrity"}, []Capability{BPF},
			"locked down (integrity), or a security module denies bpf(2)",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := &Error{Missing: tc.now.lacks(tc.need), Why: tc.now.otherwise(), err: refused}
			want := strings.Replace(tc.want, "it has them", "this process has the capabilities", 1)
			if got := err.Error(); !strings.Contains(got, want) || strings.Contains(got, "MEMLOCK") || strings.Contains(got, "\n") {
				t.Errorf("Error = %q, want %q", got, want)
			}
			if !errors.Is(err, unix.EPERM) {
				t.Errorf("%v does not wrap its cause", err)
			}
		})
	}
}

func TestOnlyRefusalsForWantOfARightAreExplained(t *testing.T) {
	other, evaluated := errors.New("no memory"), fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: unix.EACCES})
	for _, err := range []error{nil, other, evaluated} {
		if got := ExplainLoad(err, []Capability{BPF}); got != err { //nolint:errorlint // the very same one
			t.Errorf("ExplainLoad of %v = %v", err, got)
		}
		if got := ExplainAttach(err, []Capability{BPF}); got != err { //nolint:errorlint // the very same one
			t.Errorf("ExplainAttach of %v = %v", err, got)
		}
	}
}

func TestTheModeOfLockdownIsTheOneInBrackets(t *testing.T) {
	for modes, want := range map[string]string{
		"[none] integrity confidentiality\n": "",
		"none [integrity] confidentiality\n": "integrity",
		"none integrity [confidentiality]\n": "confidentiality",
		"":                                   "",
	} {
		if got := chosen(modes); got != want {
			t.Errorf("chosen(%q) = %q, want %q", modes, got, want)
		}
	}
}

func TestTheModeOfSeccompIsThatOfTheStatus(t *testing.T) {
	for status, want := range map[string]string{
		"Name:\tskep\nSeccomp:\t2\nSeccomp_filters:\t1\n": "2", "NoNewPrivs:\t0\nSeccomp:\t0\n": "0", "Name:\tskep\n": "",
	} {
		if got := seccompMode(status); got != want {
			t.Errorf("seccompMode(%q) = %q, want %q", status, got, want)
		}
	}
}

func TestLoadingTakesWhatTheKernelAsksForByType(t *testing.T) {
	for kind, want := range map[ebpf.ProgramType][]Capability{
		ebpf.XDP: {NetAdmin, BPF}, ebpf.SchedCLS: {NetAdmin, BPF}, ebpf.CGroupSockAddr: {NetAdmin, BPF}, ebpf.CGroupSKB: {BPF}, ebpf.SkLookup: {BPF},
		ebpf.TracePoint: {Perfmon, BPF}, ebpf.Tracing: {Perfmon, BPF}, ebpf.Kprobe: {Perfmon, BPF}, ebpf.Extension: {NetAdmin, Perfmon, BPF},
	} {
		if diff := cmp.Diff(want, ToLoad(kind, kind)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
}
