package host

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/nodemode"
)

// behindOthers is a link that programs of others run before.
func behindOthers(ahead ...others.Program) agent.LinkStatus {
	return agent.LinkStatus{Hook: "tcx/ingress", Target: "eth0", State: agent.Attached, Behind: ahead}
}

// TestProgramsOfOthersAreShownInTheirOrder also those whose names are no names.
func TestProgramsOfOthersAreShownInTheirOrder(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(nodemode.Status{}))
	notes := behindOthers(others.Program{ID: 41, Name: "cil_from_netdev"}, others.Program{ID: 42}).Notes()
	state := answering(t, &status,
		agent.ChainStatus{Interface: "eth0", Ifindex: 2, Hook: "xdp", Members: []agent.MemberStatus{{Program: "cil_xdp_entry", Unmanaged: true, ID: 40}}},
		agent.ChainStatus{Interface: "eth0", Ifindex: 2, Hook: "tcx/ingress", Members: []agent.MemberStatus{
			{Program: "cil_from_netdev", Unmanaged: true, ID: 41}, {Unmanaged: true, ID: 42},
			{Application: "net/count", Program: "count", Priority: 500, ID: 50, Notes: notes}}},
		agent.ChainStatus{Interface: "eth0", Ifindex: 2, Hook: "tc/egress", Error: "the list is cut", Members: []agent.MemberStatus{
			{Unmanaged: true, Pref: 1}, {Application: "shape", Program: "shape", Priority: 1, ID: 51, Pref: 2030}}})
	var out locked
	if err := ask(t.Context(), &out, "chain", "--state", state); err != nil {
		t.Fatal(err)
	}
	want := `eth0  xdp
#  PRIORITY  APPLICATION  PROGRAM        ID
1  -         unmanaged    cil_xdp_entry  40
eth0  tcx/ingress
#  PRIORITY  APPLICATION  PROGRAM          ID
1  -         unmanaged    cil_from_netdev  41
2  -         unmanaged    -                42
3  500       net/count    count            50
net/count count: behind cil_from_netdev (id 41) and a program (id 42), each of which can end the chain
eth0  tc/egress
#  PRIORITY  APPLICATION  PROGRAM  ID  PREF
1  -         unmanaged    -        0   1
2  1         shape        shape    51  2030
not all is known: the list is cut
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
}

func TestStatusAndExplainSayWhichProgramsOfOthersRunBefore(t *testing.T) {
	five := []others.Program{{ID: 1, Name: "a"}, {ID: 2, Name: "b"}, {ID: 3, Name: "c"}, {ID: 4, Name: "d"}, {Pref: 7}}
	a := notReady(func(a *nodemode.Application) {
		a.Conditions[0].Status, a.Conditions[0].Reason = metav1.ConditionTrue, nodemode.ReasonSucceeded
		a.Programs = []agent.ProgramStatus{{Name: "count", ID: 50, Tag: "aa", Links: []agent.LinkStatus{
			behindOthers(others.Program{ID: 41, Name: "cil\x1b[2Jevil\n"}), behindOthers(five...), {Hook: "xdp", Target: "eth1", State: agent.Attached, NeverRan: 7}}}}
	})
	var status, explained bytes.Buffer
	printWhy(&status, a)
	explain(&explained, a)
	want := "\napp\n  order     tcx/ingress on eth0: behind cil�[2Jevil  (id 41), which can end the chain\n" +
		"  order     tcx/ingress on eth0: behind a (id 1) and b (id 2) and c (id 3) and 2 more, each of which can end the chain\n" +
		"  warning   xdp on eth1: has never run, while the interface received packets (7)\n"
	if diff := cmp.Diff(want, status.String()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if want := "    Attached   tcx/ingress on eth0\n" +
		"               behind cil�[2Jevil  (id 41), which can end the chain\n"; !strings.Contains(explained.String(), want) {
		t.Errorf("explain says %q, want %q in it", &explained, want)
	}
}
