package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAFullTargetIsSaidToBeFull attaches programs until the kernel takes no more, which must be where the table has it. Tracepoints and
// functions are the kernel's own: nothing else is to be attached to these.
func TestAFullTargetIsSaidToBeFull(t *testing.T) {
	need.Kernel(t)
	cgroup := filepath.Join(need.Cgroup(t), "full")
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	for name, c := range map[string]struct {
		target plan.Target
		says   string
	}{
		"tracepoint":         {plan.Target{Tracepoint: "syscalls/sys_enter_getresgid"}, ", or use raw_tp or tp_btf"},
		"fentry":             {plan.Target{Function: "bpf_fentry_test1"}, ", or use kprobe or kretprobe"},
		"cgroup_skb/ingress": {plan.Target{Cgroup: strings.TrimPrefix(cgroup, need.Cgroup(t))}, ": "},
		"tcx/ingress":        {plan.Target{Interface: "lo", Ifindex: 1}, ": "},
		"sk_lookup":          {plan.Target{NetworkNamespace: "/proc/self/ns/net"}, ": "},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := hook.Lookup(name)
			r := attach.Request{Host: attach.Host{CgroupRoot: need.Cgroup(t)}, Attachment: plan.Attachment{Program: "f", Hook: name, Target: c.target}}
			taken, err := 0, error(nil)
			for ; err == nil && taken <= h.MostPrograms(); taken++ {
				p, loadErr := ebpf.NewProgram(&ebpf.ProgramSpec{Type: h.ProgramType, AttachType: h.AttachType, AttachTo: c.target.Function, License: "GPL",
					Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
				if errors.Is(loadErr, unix.EPERM) || errors.Is(loadErr, ebpf.ErrNotSupported) {
					t.Skipf("SKIPPED: this kernel does not load it: %v", loadErr)
				}
				if loadErr != nil {
					t.Fatal(loadErr)
				}
				t.Cleanup(func() { _ = p.Close() })
				r.Program = p
				var l pins.Held
				if l, err = attach.To(r); err == nil {
					t.Cleanup(func() { _ = l.Close() })
				}
			}
			if errors.Is(err, ebpf.ErrNotSupported) {
				t.Skipf("SKIPPED: %v", err)
			}
			if err == nil || taken != h.MostPrograms()+1 || !strings.Contains(err.Error(), "detach one that `skep inventory` lists"+c.says) {
				t.Errorf("number %d: %v", taken, err)
			}
		})
	}
}
