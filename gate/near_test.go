package gate

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
)

// TestADenialNamesSectionsNearAMisspelledOne: and none where the section is libbpf's own.
func TestADenialNamesSectionsNearAMisspelledOne(t *testing.T) {
	for section, c := range map[string]struct {
		typ  ebpf.ProgramType
		says string
	}{
		"xdpp":               {ebpf.XDP, `implies none; near it are xdp (name the hook: xdp, or write the section as libbpf does)`},
		"?kprob/tcp_connect": {ebpf.UnspecifiedProgram, "implies none; near it are kprobe"},
		"cgroup/conect4":     {ebpf.UnspecifiedProgram, "implies none; near it are cgroup/connect4"},
		"prog":               {ebpf.UnspecifiedProgram, `its section "prog" implies none (name the hook)`},
		"classifier": {ebpf.SchedCLS, `its section "classifier" implies none ` +
			`(name the hook: tcx/ingress, tcx/egress, tc/ingress, tc/egress, netkit/primary, netkit/peer)`},
		"cgroup/skb":    {ebpf.CGroupSKB, `its section "cgroup/skb" implies none (name the hook: cgroup_skb/ingress, cgroup_skb/egress)`},
		"xdp_reflector": {ebpf.XDP, `its section "xdp_reflector" implies none (name the hook: xdp)`},
	} {
		t.Run(section, func(t *testing.T) {
			r := &denials{object: "app"}
			fitProgram(r, v1alpha1.Identity{}, 0, v1alpha1.Program{Name: "f"}, bytecode.Program{Name: "f", Section: section, Type: c.typ.String()})
			if len(r.reasons) != 1 {
				t.Fatalf("reasons = %+v", r.reasons)
			}
			if said := r.reasons[0].Message + " (" + r.reasons[0].Fix + ")"; !strings.Contains(said, c.says) {
				t.Errorf("says %q, want %q in it", said, c.says)
			}
		})
	}
}

// TestAHookThatIsNotAttachedIsTheOnlyReason: which fields it would take is nobody's question.
func TestAHookThatIsNotAttachedIsTheOnlyReason(t *testing.T) {
	r := &denials{object: "app"}
	shapeAttachment(r, v1alpha1.Identity{}, "at", v1alpha1.Attachment{
		Hook: "uprobe.session", Binary: &v1alpha1.UserBinary{Path: "/a", Symbols: &v1alpha1.Symbols{Names: []string{"f"}}},
	})
	if len(r.reasons) != 1 || r.reasons[0].Rule != "shape/hook" {
		t.Errorf("reasons = %+v", r.reasons)
	}
}

// TestASocketFilterIsDeniedOnce: it is read as a program of the hooks that attach it, which is not
// the type of the hook that its section names.
func TestASocketFilterIsDeniedOnce(t *testing.T) {
	r := &denials{object: "app"}
	fact := bytecode.Program{Name: "f", Section: "socket", Hook: "socket", Type: ebpf.SchedCLS.String()}
	fitProgram(r, v1alpha1.Identity{}, 0, v1alpha1.Program{Name: "f"}, fact)
	if len(r.reasons) != 1 || r.reasons[0].Rule != "shape/hook" {
		t.Errorf("reasons = %+v", r.reasons)
	}
}

// TestABinaryIsNotTheAgents: examples of libbpf trace themselves, by a path that is another
// file for who attaches their program.
func TestABinaryIsNotTheAgents(t *testing.T) {
	for path, denied := range map[string]bool{"/proc/self/exe": true, "/proc/thread-self/exe": true, "/proc/1/root/bin/tool": false, "/proc/selfish/exe": false} {
		wrong, fix := legalBinary(v1alpha1.Attachment{Binary: &v1alpha1.UserBinary{Path: path, Symbol: "f"}})
		if denied != strings.Contains(wrong, "leads to Skep itself") || denied != (fix != "") {
			t.Errorf("%s: %q (%s)", path, wrong, fix)
		}
	}
}
