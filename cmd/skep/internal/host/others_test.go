package host

import (
	"bytes"
	"strings"
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
