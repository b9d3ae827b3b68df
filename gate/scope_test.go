package gate_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
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
		"the middle of a function": {"uprobe_count", v1alpha1.Attachment{
			Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/app", Symbol: "main", Offset: 1}, Pods: pods,
		},
			"attach[0].binary.offset", "an offset may lie inside of an instruction"},
		"what lies behind a function of the kernel": {"kprobe_count", v1alpha1.Attachment{
			Hook: "kprobe", Functions: &v1alpha1.Functions{Names: []string{"__x64_sys_getpid"}, Offset: 0x302b0}, Pods: pods,
		},
			"attach[0].functions.offset", `program kprobe_count of section "kprobe/do_unlinkat": an offset may lead into another function of the kernel`},
		"room before its packets": {"xdp_adjust", v1alpha1.Attachment{Hook: "xdp", Pods: pods}, "spec.programs[0]", "reads memory of the kernel"},
		"memory of the kernel":    {"tp_poisoned", tracepoint("tracepoint", "syscalls/sys_enter_getpgid"), "spec.programs[0]", "reads memory of the kernel"},
		"a task, by a store that a load moves": {
			"tp_btf_core_hidden", tracepoint("tp_btf", "sched_process_exec"), "spec.programs[0]", "may not: a load at instruction",
		},
		"room before its packets, by a number that a load changes": {
			"xdp_core_negative", v1alpha1.Attachment{Hook: "xdp", Pods: pods}, "spec.programs[0]", "may not: bpf_xdp_adjust_head",
		},
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

// TestATaskGetsNoRightsOfATeam has programs of a namespace do to sockets what tasks may not. The cluster's may.
func TestATaskGetsNoRightsOfATeam(t *testing.T) {
	w := newWorld(t)
	image, evaluator := w.signed("lifts"), w.evaluator()
	for program, says := range map[string]string{
		"low_port":             "may not: returning 3, which on bind lets a port below 1024 be used",
		"mark":                 "may not: a store to bpf_sock.mark",
		"device":               "may not: a store to bpf_sock.bound_dev_if",
		"packet_mark":          "may not: a store to __sk_buff.mark",
		"leaving_mark":         "may not: a store to __sk_buff.mark",
		"leaving_class":        "",
		"option_mark":          "may not: bpf_setsockopt of SO_MARK",
		"option_by_variable":   "may not: bpf_setsockopt of an option that is no constant",
		"low_port_by_variable": "", // The agent bounds it.
		"low_port_of_no_type":  "",
		"mark_of_no_type":      "may not: a store to its context",
		"bound":                "may not: bpf_bind",
		"source":               "may not: a store to bpf_sock_addr.msg_src_ip6",
		"sent_elsewhere":       "",
		"option_buffer":        "",
		"packet_cb":            "",
	} {
		ofNoType := map[string]string{"low_port_of_no_type": "cgroup/bind4", "mark_of_no_type": "cgroup/sock_create"}
		wide := app(image, program, v1alpha1.Attachment{Hook: ofNoType[program], Pods: &v1alpha1.Pods{}})
		denied := mustEvaluate(t, evaluator, namespaced(wide)).Decision().Denied
		if (len(denied) > 0) != (says != "") || len(denied) > 1 {
			t.Errorf("%s: denied by %v, want %q", program, denied, says)
		}
		for _, r := range denied {
			if r.Rule != "inspect/scope" || !strings.Contains(r.Message, says) || r.Fix == "" {
				t.Errorf("%s: denied by %s: %s, want %q", program, r.Rule, r.Message, says)
			}
		}
		for _, r := range mustEvaluate(t, evaluator, wide).Decision().Denied {
			t.Errorf("%s: a cluster is denied it by %s: %s", program, r.Rule, r.Message)
		}
	}
}

// TestANamespaceReadsRegistersWhereItFindsThem attaches programs of the object registers, which read
// the kernel by one helper. What the gate lets pass the agent bounds (agent/program/loader).
func TestANamespaceReadsRegistersWhereItFindsThem(t *testing.T) {
	w := newWorld(t)
	image, evaluator := w.signed("registers"), w.evaluator()
	binary := func(hook string, b v1alpha1.UserBinary) v1alpha1.Attachment {
		b.Path = "/app"
		return v1alpha1.Attachment{Hook: hook, Binary: &b, Pods: &v1alpha1.Pods{}}
	}
	functions := func(hook string, names ...string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Functions: &v1alpha1.Functions{Names: names}, Pods: &v1alpha1.Pods{}}
	}
	probe := binary("uprobe", v1alpha1.UserBinary{Symbol: "main"})
	declared := binary("usdt", v1alpha1.UserBinary{USDT: &v1alpha1.USDT{Provider: "skep", Name: "one"}})
	call := functions("kprobe", "__x64_sys_openat")
	enter := v1alpha1.Attachment{Hook: "raw_tp", Tracepoint: "sys_enter", Pods: &v1alpha1.Pods{}}
	for sentence, c := range map[string]struct {
		program string
		at      []v1alpha1.Attachment
		allowed bool
	}{
		"a register of a function":                         {"reads_register", []v1alpha1.Attachment{probe}, true},
		"one on its return":                                {"reads_register", []v1alpha1.Attachment{binary("uretprobe", v1alpha1.UserBinary{Symbol: "main"})}, true},
		"one of a probe that the binary declares":          {"reads_register", []v1alpha1.Attachment{declared}, true},
		"one at two of them":                               {"reads_register", []v1alpha1.Attachment{probe, declared}, true},
		"one at an offset that the program wrote to a map": {"writes_specs", []v1alpha1.Attachment{declared}, true},
		"one in a function of the program":                 {"reads_in_function", []v1alpha1.Attachment{probe}, true},
		"the argument of a system call":                    {"argument", []v1alpha1.Attachment{functions("ksyscall", "openat")}, true},
		"one of its function":                              {"argument", []v1alpha1.Attachment{call}, true},
		"the argument of every system call":                {"enters", []v1alpha1.Attachment{enter}, true},
		"the argument of another tracepoint": {
			"enters", []v1alpha1.Attachment{{Hook: "raw_tp", Tracepoint: "sched_process_exec", Pods: &v1alpha1.Pods{}}}, false,
		},
		"the context of a function of the kernel": {"reads_register", []v1alpha1.Attachment{call}, false},
		"the context at one of two places":        {"reads_register", []v1alpha1.Attachment{probe, call}, false},
		"the argument of another function":        {"argument", []v1alpha1.Attachment{functions("kprobe", "vfs_open")}, false},
		"the argument of one of two":              {"argument", []v1alpha1.Attachment{functions("kprobe", "__x64_sys_openat", "vfs_open")}, false},
		"the argument on a return":                {"argument", []v1alpha1.Attachment{functions("kretsyscall", "openat")}, false},
		"the argument in a binary":                {"argument", []v1alpha1.Attachment{probe}, false},
		"a value of a map":                        {"map_value", []v1alpha1.Attachment{probe}, false},
		"a number":                                {"number", []v1alpha1.Attachment{probe}, false},
		"the task":                                {"task", []v1alpha1.Attachment{probe}, false},
		"registers by another helper":             {"registers_of_task", []v1alpha1.Attachment{probe}, false},
		"text":                                    {"string", []v1alpha1.Attachment{probe}, false},
		"another address on one path":             {"other_path", []v1alpha1.Attachment{probe}, false},
		"another address from one caller":         {"other_caller", []v1alpha1.Attachment{probe}, false},
		"an address that another name changes":    {"altered", []v1alpha1.Attachment{probe}, false},
		"in a callback":                           {"callback", []v1alpha1.Attachment{probe}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			wide := app(image, c.program, c.at...)
			// The object has a prog array with a program that reads, too, which is another test's.
			denied := deniedFor(t, evaluator, namespaced(wide), "spec.programs[0]")
			if c.allowed != (len(denied) == 0) {
				t.Errorf("denied: %v", denied)
			}
			for _, says := range denied {
				if !strings.Contains(says, "reads memory of the kernel, which belongs to all namespaces") {
					t.Errorf("it is denied, since it %s", says)
				}
			}
			if denied := deniedFor(t, evaluator, wide, ""); len(denied) > 0 {
				t.Errorf("a cluster is denied it: %v", denied)
			}
		})
	}
	// Nothing says where a program runs that is tail called.
	if denied := deniedFor(t, evaluator, namespaced(app(image, "tails", probe)), "spec.bytecode.image"); len(denied) == 0 {
		t.Error("a program that is tail called may read registers")
	}
}

// deniedFor are the messages of the rule on scopes at a path of a definition.
func deniedFor(t *testing.T, e *gate.Evaluator, definition v1alpha1.Application, path string) (denied []string) {
	t.Helper()
	for _, r := range mustEvaluate(t, e, definition).Decision().Denied {
		if r.Rule == "inspect/scope" && strings.HasPrefix(r.Path, path) {
			denied = append(denied, r.Message)
		}
	}
	return denied
}
