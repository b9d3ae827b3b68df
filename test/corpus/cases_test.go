package corpus_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// withBaseline makes the gate of a node ask the policy baseline.
func (n *node) withBaseline() {
	n.t.Helper()
	engine := policies.NewEngine(policies.EngineOptions{})
	n.t.Cleanup(engine.Close)
	set, err := engine.Compile(n.t.Context(), nil, policies.Options{Timeout: time.Minute})
	if err != nil {
		n.t.Fatal(err)
	}
	n.gate.SetPolicies(set)
}

// evaluated is what the gate says of a program at an attachment.
func (n *node) evaluated(app v1alpha1.Application, object, program string, at v1alpha1.Attachment) gate.Verdict {
	n.t.Helper()
	body := programs.Object(object)
	ref, _ := n.supply.Push(label(object)+":v1", body, "team")
	n.bodies[fmt.Sprintf("sha256:%x", sha256.Sum256(body))] = body
	spec := app.Body()
	spec.Bytecode.Image = ref
	spec.Programs = []v1alpha1.Program{{Name: program, Attach: []v1alpha1.Attachment{at}}}
	v, err := n.gate.Evaluate(n.t.Context(), gate.Request{Application: app})
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}

// opened is the intent that a verdict is sealed as.
func (n *node) opened(v gate.Verdict, uid string) intent.Payload {
	n.t.Helper()
	n.serial++
	envelope, err := v.Seal(n.key.Sealer, gate.Stamp{UID: uid, Serial: n.serial, Created: 1})
	if err != nil {
		n.t.Fatal(err)
	}
	o, err := n.key.Trust.Open(envelope)
	if err != nil {
		n.t.Fatal(err)
	}
	return o.Payload()
}

// TestCasesOfANamespaceAreDeniedTwice takes programs that once led a namespace out of its pods, or cost its
// neighbours, through gate and agent: the gate denies the namespace, and an agent that is handed such an
// intent does, too. A cluster may have each, by the facts that its intent has.
func TestCasesOfANamespaceAreDeniedTwice(t *testing.T) {
	need.Kernel(t)
	furnish(t)
	on := v1alpha1.Interfaces{Names: []string{device}}
	for object, c := range map[string]struct {
		at v1alpha1.Attachment
		// rule and says are the gate's, node the agent's.
		rule, says, node string
	}{
		"tp_btf_core_hidden": {v1alpha1.Attachment{Tracepoint: "sched_process_exec"}, "inspect/scope", "a load at instruction", "load/facts"},
		"xdp_core_negative":  {v1alpha1.Attachment{Interfaces: &on}, "inspect/scope", "bpf_xdp_adjust_head", "load/facts"},
		"tcx_core_socket":    {v1alpha1.Attachment{Interfaces: &on}, "inspect/scope", "socket of a packet", "load/facts"},
		"uprobe_printk": {v1alpha1.Attachment{Binary: &v1alpha1.UserBinary{Path: binary, Symbol: "work_one"}},
			"inspect/scope", "bpf_trace_printk", "load/facts"},
		"tcx_divisions": {v1alpha1.Attachment{Interfaces: &on}, "inspect/load", "tcx_divisions", "programs denied by load/cost: "},
		"cgroup_inner_seed": {v1alpha1.Attachment{Cgroup: cgroup}, "inspect/scope", "map outer of type Hash has the flag BPF_F_ZERO_SEED, which ",
			"map outer denied by load/maps: it has the flag BPF_F_ZERO_SEED"},
		"cgroup_zero_seed": {v1alpha1.Attachment{Cgroup: cgroup}, "inspect/scope", "map unseeded of type Hash has the flag BPF_F_ZERO_SEED, which ",
			"map unseeded denied by load/maps: it has the flag BPF_F_ZERO_SEED"},
		"cgroup_sock_storage": {v1alpha1.Attachment{Cgroup: cgroup}, "inspect/scope", "map stored of type SkStorage", "map stored denied by load/maps: "},
	} {
		t.Run(object, func(t *testing.T) {
			n := newNode(t)
			n.withBaseline()
			inPods := c.at
			inPods.Interfaces, inPods.Cgroup, inPods.Pods = nil, "", &v1alpha1.Pods{}
			v := n.evaluated(&v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "case"}}, object, object, inPods)
			if !slices.ContainsFunc(v.Decision().Denied, func(r policies.Reason) bool {
				return r.Rule == c.rule && strings.Contains(r.Message, c.says) && r.Fix != ""
			}) {
				t.Errorf("the gate says %+v, want %s with %q", v.Decision().Denied, c.rule, c.says)
			}
			v = n.evaluated(&v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "case"}}, object, object, c.at)
			whole := n.opened(v, "uid-cluster")
			stolen := whole
			stolen.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: "case"}
			// Its intent allows the calls, by the one list of an earlier build, and nothing else.
			calls := slices.DeleteFunc(slices.Clone(whole.Facts.Calls), func(name string) bool { return name == "fact ownCalls" })
			stolen.UID, stolen.Facts = "uid-team", &intent.Facts{Calls: calls}
			if err := n.settle(stolen); err == nil || !strings.Contains(err.Error(), c.node) {
				t.Errorf("the agent says %v, want %q", err, c.node)
			}
			if err := n.unload(stolen); err != nil {
				t.Error(err)
			}
			if err := n.settle(whole); err != nil {
				t.Error(err)
			}
			if err := n.unload(whole); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAProgramWithoutFragsJoinsAJumboInterface has an application that takes packets of several buffers at an MTU of 9000,
// and then one that takes none: both come through the gate, and run.
func TestAProgramWithoutFragsJoinsAJumboInterface(t *testing.T) {
	need.Kernel(t)
	furnish(t)
	for _, name := range []string{device, peer} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMTU(l, 9000)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t)
	n.withBaseline()
	at := v1alpha1.Attachment{Interfaces: &v1alpha1.Interfaces{Names: []string{device}}}
	for _, one := range [][2]string{{"xdp_frags", "xdp_frags"}, {"xdp_count", "count_packets"}} {
		app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: label(one[0])}}
		if err := n.settle(n.opened(n.evaluated(app, one[0], one[1], at), "uid-"+app.Name)); err != nil {
			t.Fatalf("%s: %v", one[0], err)
		}
	}
	for _, s := range n.agent.Status() {
		if s.Error != "" || len(s.Programs) != 1 || len(s.Programs[0].Links) != 1 {
			t.Fatalf("status %+v", s)
		}
		if l := s.Programs[0].Links[0]; l.State != agent.Attached || l.XDPMode != v1alpha1.XDPGeneric {
			t.Errorf("%s is attached like this: %+v", s.Application, l)
		}
	}
	if len(n.agent.Status()) != 2 {
		t.Errorf("the agent has %+v", n.agent.Status())
	}
	for _, s := range n.agent.Status() {
		if err := n.unload(intent.Payload{Application: s.Application, UID: s.UID}); err != nil {
			t.Error(err)
		}
	}
}
