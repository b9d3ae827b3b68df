package profile

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/rights"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

func TestAHookWithoutTheRightToItIsToldFromOneThatTheKernelLacks(t *testing.T) {
	answers := map[string]error{
		"tcx/ingress": &attach.LackingError{},
		"uprobe":      &rights.Error{Missing: []rights.Capability{rights.SysAdmin}},
		"uretprobe":   &rights.Error{Missing: []rights.Capability{rights.SysAdmin}},
		"tracepoint":  &rights.Error{Why: "it runs in a user namespace"},
		"raw_tp":      errors.New("something else"),
	}
	names, denied := hooks(func(h hook.Hook) error { return answers[h.Name] }, slog.New(slog.DiscardHandler))
	for name, want := range map[string]bool{"xdp": true, "raw_tp": true, "tcx/ingress": false, "uprobe": false, "tracepoint": false} {
		if slices.Contains(names, name) != want {
			t.Errorf("hook %s is listed: %v", name, !want)
		}
	}
	for i := range denied {
		slices.Sort(denied[i].Hooks)
	}
	slices.SortFunc(denied, func(a, b v1alpha1.DeniedHooks) int { return len(b.Hooks) - len(a.Hooks) })
	if diff := cmp.Diff([]v1alpha1.DeniedHooks{
		{Hooks: []string{"uprobe", "uretprobe"}, Reason: "this process lacks CAP_SYS_ADMIN; grant it"},
		{Hooks: []string{"tracepoint"}, Reason: "it runs in a user namespace"},
	}, denied); diff != "" {
		t.Error(diff)
	}
}

func TestAMapTypeThatCannotBeToldCounts(t *testing.T) {
	names := kinds(ebpf.Hash, ebpf.Arena, func(m ebpf.MapType) error {
		return map[ebpf.MapType]error{ebpf.Arena: ebpf.ErrNotSupported, ebpf.LPMTrie: unix.EPERM}[m]
	})
	if slices.Contains(names, "Arena") || !slices.Contains(names, "LPMTrie") || !slices.Contains(names, "Hash") {
		t.Errorf("map types %v", names)
	}
}

func TestAProgramTypeIsThereWhereOneOfItsHooksIs(t *testing.T) {
	names := programTypes(func(p ebpf.ProgramType) error {
		return map[ebpf.ProgramType]error{
			ebpf.Tracing: ebpf.ErrNotSupported, ebpf.Kprobe: ebpf.ErrNotSupported, ebpf.SkLookup: ebpf.ErrNotSupported, ebpf.LSM: unix.EPERM,
		}[p]
	}, v1alpha1.KernelProfile{Hooks: []string{"xdp", "tp_btf"}, Denied: []v1alpha1.DeniedHooks{{Hooks: []string{"uprobe"}}}})
	for name, want := range map[string]bool{"Tracing": true, "Kprobe": true, "XDP": true, "LSM": true, "SkLookup": false, "UnspecifiedProgram": false} {
		if slices.Contains(names, name) != want {
			t.Errorf("program type %s is listed: %v", name, !want)
		}
	}
}

func TestWhatTheKernelSaysOfItselfIsRead(t *testing.T) {
	for text, want := range map[string]string{"none [integrity] confidentiality\n": "integrity", "[none] integrity": "none", "": ""} {
		if got := lockdown(text); got != want {
			t.Errorf("lockdown(%q) = %q", text, got)
		}
	}
	if diff := cmp.Diff([]string{"capability", "bpf"}, modules("capability,bpf")); diff != "" {
		t.Error(diff)
	}
	if got := modules(""); got != nil {
		t.Errorf("modules of nothing = %v", got)
	}
}
