package gate_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestANamespaceSeesItsOwnPodsAlone has a namespace attach programs in its Pods, by what they see
// and read. A cluster may have all of them.
func TestANamespaceSeesItsOwnPodsAlone(t *testing.T) {
	w := newWorld(t)
	pods := &v1alpha1.Pods{}
	function := func(names ...string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "kprobe", Functions: &v1alpha1.Functions{Names: names}, Pods: pods}
	}
	tracepoint := func(hook, name string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Tracepoint: name, Pods: pods}
	}
	probe := v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/app", Symbol: "main"}, Pods: pods}
	for sentence, c := range map[string]struct {
		object string
		at     v1alpha1.Attachment
		// path and says are those of the denial; none where it is allowed.
		path, says string
	}{
		"a function of its binary":           {"uprobe_count", probe, "", ""},
		"its calls of the system":            {"tracepoint_count", tracepoint("tracepoint", "syscalls/sys_enter_getpgid"), "", ""},
		"the functions of system calls":      {"kprobe_count", function("__x64_sys_unlinkat"), "", ""},
		"its cgroup":                         {"cgroup_connect4", v1alpha1.Attachment{Pods: pods}, "", ""},
		"its network":                        {"xdp_count", v1alpha1.Attachment{Hook: "xdp", Pods: pods}, "", ""},
		"packets that come in":               {"kprobe_count", function("tcp_v4_rcv"), "attach[0].functions", "kprobe tcp_v4_rcv is not known"},
		"one of two functions":               {"kprobe_count", function("__x64_sys_unlinkat", "tcp_v4_rcv"), "attach[0].functions", "kprobe tcp_v4_rcv is not known"},
		"functions that a glob chooses":      {"kprobe_count", function("tcp_*"), "attach[0].functions", "kprobe tcp_* is not known"},
		"what the scheduler does with tasks": {"raw_tp_count", tracepoint("raw_tp", "sched_switch"), "attach[0].tracepoint", "raw_tp sched_switch is not known"},
		"the middle of a function": {"uprobe_count", v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/app", Symbol: "main", Offset: 1}, Pods: pods},
			"attach[0].binary.offset", "an offset may lie inside of an instruction"},
		"memory of the kernel": {"tp_poisoned", tracepoint("tracepoint", "syscalls/sys_enter_getpgid"), "spec.programs[0]", "reads memory of the kernel"},
	} {
		t.Run(sentence, func(t *testing.T) {
			wide := app(w.signed(c.object), programOf(t, c.object), c.at)
			var found bool
			for _, r := range mustEvaluate(t, w.evaluator(), namespaced(wide)).Decision().Denied {
				if r.Rule == "inspect/scope" && strings.Contains(r.Path, c.path) && strings.Contains(r.Message, c.says) && r.Fix != "" {
					found = true
				} else {
					t.Errorf("denied by %s at %s: %s", r.Rule, r.Path, r.Message)
				}
			}
			if found != (c.says != "") {
				t.Errorf("denied: %v, want %q", found, c.says)
			}
			for _, r := range mustEvaluate(t, w.evaluator(), wide).Decision().Denied {
				t.Errorf("a cluster is denied it by %s: %s", r.Rule, r.Message)
			}
		})
	}
}
