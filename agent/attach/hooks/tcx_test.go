package hooks_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// order is what runs on fo0's TCX ingress: the names of applications, and F and
// G for the foreign programs.
func order(t testing.TB, a *agent.Agent, foreign map[link.ID]string) string {
	t.Helper()
	ids, err := attach.Order("tcx/ingress", plan.Device{Index: world.Index(t, "fo0")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := maps.Clone(foreign)
	for _, s := range a.Status() {
		for _, p := range s.Programs {
			for _, l := range p.Links {
				names[link.ID(l.ID)] = s.Application.Name
			}
		}
	}
	var out []string
	for _, p := range ids {
		out = append(out, names[p.Link])
	}
	return strings.Join(out, " ")
}

func TestTCXKeepsPriorityAndLeavesForeignProgramsInTheirPlaces(t *testing.T) {
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	w := world.New(t)
	world.Veth(t, "fo0", "fo1")
	foreign := map[link.ID]string{}
	attachForeign := func(name string, anchor link.Anchor) {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: world.Index(t, "fo0"), Program: world.ForeignProgram(t, ebpf.SchedCLS), Attach: ebpf.AttachTCXIngress, Anchor: anchor,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		foreign[info.ID] = name
	}
	a, stop := w.Start()
	step := func(want string, payloads ...intent.Payload) {
		t.Helper()
		if err := w.Accept(a, payloads...); err != nil {
			t.Fatal(err)
		}
		if got := order(t, a, foreign); got != want {
			t.Fatalf("the order is %q, not %q", got, want)
		}
		ours := slices.DeleteFunc(strings.Fields(order(t, a, foreign)), func(n string) bool { return n != "F" && n != "G" })
		if len(foreign) == 2 && strings.Join(ours, "") != "FG" {
			t.Fatalf("foreign programs changed places: %v", ours)
		}
	}
	app := func(name string, priority int32) intent.Payload {
		return w.Intent(name, "tcx_count", v1alpha1.Program{Name: "count_ingress", Attach: []v1alpha1.Attachment{{
			Hook: "tcx/ingress", Interfaces: &v1alpha1.Interfaces{Names: []string{"fo0"}}, Priority: &priority}}})
	}
	attachForeign("F", link.Tail())
	step("F m", app("m", 500))
	attachForeign("G", link.Tail())
	step("F a m G", app("a", 400))
	step("F a m z G", app("z", 500))
	step("F a b m z G", app("b", 400))
	// A new priority moves that one and no other.
	step("F b m z a G", app("a", 900))
	step("F z b m a G", app("z", 1))
	// A new priority that changes no order moves nothing.
	step("F z b m a G", app("z", 2))
	stop()
	a, _ = w.Start()
	step("F z b m a G")
	step("F b z m a G", app("b", 0))
	step("F z b m a G", app("b", 3))
	w.Serial++
	step("F z b a G", intent.Payload{Application: world.Identity("m"), UID: "uid-m", Serial: w.Serial, Tombstone: true})
}
