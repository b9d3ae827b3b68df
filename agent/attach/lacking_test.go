package attach_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/running"
)

func row(t *testing.T, name string) hook.Hook {
	t.Helper()
	h, ok := hook.Lookup(name)
	if !ok {
		t.Fatalf("no hook %s", name)
	}
	return h
}

func TestAKernelThatLacksAHookIsToldWhichHasIt(t *testing.T) {
	cause := errors.New("query programs: invalid argument")
	for sentence, tc := range map[string]struct {
		running uint32
		older   bool
		want    string
	}{
		"an older kernel":                   {6<<16 | 1<<8 | 170, true, "hook tcx/ingress needs Linux 6.6 or newer, and this node runs 6.1; "},
		"an older major version":            {5<<16 | 15<<8, true, "this node runs 5.15; "},
		"the very version, without it":      {6<<16 | 6<<8, false, "this node's 6.6 was built without it; "},
		"a newer one whose minor is less":   {7<<16 | 1<<8, false, "this node's 7.1 was built without it; "},
		"a kernel that tells no version":    {0, false, "needs Linux 6.6 or newer, and this node's kernel does not have it; "},
		"a minor version of two digits now": {6<<16 | 12<<8 | 117, false, "this node's 6.12 was built"},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := &attach.LackingError{Hook: row(t, "tcx/ingress"), Running: tc.running, Cause: cause}
			if got := err.Error(); !strings.Contains(got, tc.want) || !strings.Contains(got, "nodeSelector") || strings.Contains(got, "invalid argument") {
				t.Errorf("Error = %q, want %q", got, tc.want)
			}
			if err.Older() != tc.older {
				t.Errorf("Older = %v", err.Older())
			}
			if !errors.Is(err, ebpf.ErrNotSupported) || !errors.Is(err, cause) {
				t.Errorf("%v wraps neither what it is nor what caused it", err)
			}
		})
	}
}

func TestAKernelThatLacksAPartOfAHookIsSaid(t *testing.T) {
	err := &attach.LackingError{Hook: row(t, "raw_tp.w"), Part: "lets no program write to tracepoint x; name another"}
	if want := "this node's kernel lets no program write to tracepoint x; name another, or keep the application away with nodeSelector"; err.Error() != want {
		t.Errorf("Error = %q, want %q", err, want)
	}
	if !errors.Is(err, ebpf.ErrNotSupported) || err.Older() {
		t.Errorf("%v is not what it is", err)
	}
}

// TestTheTableKnowsWhichHooksThisKernelHas fails where a kernel that has every hook of its
// version lacks one that the table gives it.
func TestTheTableKnowsWhichHooksThisKernelHas(t *testing.T) {
	need.Kernel(t)
	for _, h := range hook.All() {
		if !h.Attachable {
			continue
		}
		err := attach.Probe(h)
		if lacks := new(attach.LackingError); errors.As(err, &lacks) && (lacks.Older() || running.MayLack(t, h.Name)) {
			t.Log(err)
			continue
		}
		if err != nil {
			t.Errorf("Probe = %v", err)
		}
	}
}

func TestAnErrorThatIsNotTheHooksStaysAsItIs(t *testing.T) {
	need.Kernel(t)
	other := errors.New("no memory")
	for _, name := range []string{"xdp", "cgroup/bind4", "cgroup/getpeername4", "tracepoint"} {
		if got := attach.Explain(row(t, name), other); got != other { //nolint:errorlint // the very same one
			t.Errorf("%s: Explain = %v", name, got)
		}
	}
	if err := attach.Explain(row(t, "xdp"), nil); err != nil {
		t.Errorf("Explain of nothing = %v", err)
	}
	// Nothing tells a row that no kernel has from one this kernel lacks.
	never := hook.Hook{Name: "cgroup/never", ProgramType: ebpf.CGroupSockAddr, AttachType: 4000, Shape: hook.Cgroup, MinKernel: "99.1", Attachable: true}
	err := attach.Explain(never, other)
	if lacks := new(attach.LackingError); !errors.As(err, &lacks) || !lacks.Older() || !errors.Is(err, other) ||
		!strings.Contains(err.Error(), "needs Linux 99.1") {
		t.Errorf("a hook no kernel has: Explain = %v", err)
	}
}
