package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/hook"
)

// TestAMissingFunctionIsNamedBeforeItWasLookedFor: the kernel says which one it has not, and the
// library's words are of the ways that it tried.
func TestAMissingFunctionIsNamedBeforeItWasLookedFor(t *testing.T) {
	h, _ := hook.Lookup("kprobe")
	cause := fmt.Errorf(`creating perf_kprobe PMU (arch-specific fallback for "nope"): token __x64_nope: not found: %w`, fs.ErrNotExist)
	err := Request{}.missingFunction(h, cause, "nope")
	if !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), "the kernel has no function nope") || strings.Contains(err.Error(), "PMU") {
		t.Errorf("one function: %v", err)
	}
	if err := (Request{}).missingFunction(h, cause, "nope", "tcp_connect"); !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), "PMU") {
		t.Errorf("one of two functions: %v", err)
	}
	if err := (Request{}).missingFunction(h, unix.EINVAL, "nope"); errors.Is(err, ErrTarget) {
		t.Errorf("another error: %v", err)
	}
}

// TestALoadForAMissingFunctionNamesIt: the library says alone that fentry is not supported for it.
func TestALoadForAMissingFunctionNamesIt(t *testing.T) {
	h, _ := hook.Lookup("fentry")
	host := Host{Functions: functions.New()}
	rejected := fmt.Errorf("attach Tracing/TraceFEntry: fentry tcp_connectt %w", ebpf.ErrNotSupported)
	err := ExplainLoad(host, h, []string{"tcp_connectt"}, rejected)
	if !errors.Is(err, ErrTarget) || !strings.Contains(err.Error(), "the kernel has no function tcp_connectt") ||
		!strings.Contains(err.Error(), "near it are tcp_connect") {
		t.Errorf("a function that the kernel lacks: %v", err)
	}
	if err := ExplainLoad(host, h, []string{"tcp_connect"}, rejected); !errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, ErrTarget) {
		t.Errorf("a function that the kernel has: %v", err)
	}
}
