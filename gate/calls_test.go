package gate

import (
	"strings"
	"testing"
	"unicode"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
)

// TestACallLeadsANamespaceNowhereElse has a program of a namespace call helpers and kfuncs: on a
// hook of its tasks, on one where whatever task runs, and on one where a task runs that uses a socket.
func TestACallLeadsANamespaceNowhereElse(t *testing.T) {
	for _, c := range []struct {
		call                       string
		inTask, onPacket, onSocket bool
	}{
		{"bpf_map_lookup_elem", true, true, true},
		{"bpf_ktime_get_ns", true, true, true},
		{"bpf_skb_load_bytes", true, true, true},
		{"bpf_get_current_pid_tgid", true, false, true},
		{"bpf_get_current_comm", true, false, true},
		{"bpf_probe_read_user", true, false, false},
		{"bpf_current_task_under_cgroup", true, false, true},
		{"bpf_sk_lookup_tcp", false, false, false},
		{"bpf_get_socket_uid", true, false, true},
		{"bpf_skb_cgroup_id", true, false, true},
		{"bpf_tcp_sock", true, false, true},
		{"bpf_skc_to_tcp_sock", true, false, true},
		{"bpf_sk_storage_get", false, false, false},
		{"bpf_trace_printk", false, false, false},
		{"bpf_trace_vprintk", false, false, false},
		{"bpf_snprintf", false, false, false},
		{"bpf_snprintf_btf", false, false, false},
		{"bpf_strncmp", true, true, true},
		{"bpf_probe_read_kernel_str", false, false, false},
		{"bpf_tcp_raw_gen_syncookie_ipv4", false, false, false},
		{"bpf_redirect_peer", false, false, false},
		{"bpf_skb_set_tunnel_key", false, false, false},
		{"bpf_store_hdr_opt", false, false, false},
		{"bpf_sock_ops_cb_flags_set", true, true, true},
		{"bpf_redirect", true, false, true},
		{"bpf_redirect_neigh", true, false, true},
		{"bpf_clone_redirect", true, false, true},
		{"kfunc bpf_throw", false, false, false},
		{"bpf_perf_event_read", false, false, false},
		{"bpf_timer_init", false, false, false},
		{"kfunc bpf_dynptr_from_file", false, false, false},
		{"bpf_skc_lookup_tcp", false, false, false},
		{"bpf_copy_from_user", false, false, false},
		{"bpf_set_retval", false, false, false},
		{"bpf_get_retval", true, true, true},
		{"bpf_override_return", false, false, false},
		{"bpf_probe_write_user", false, false, false},
		{"kfunc bpf_dynptr_from_skb", true, true, true},
		{"kfunc bpf_obj_drop_impl", true, true, true},
		{"kfunc bpf_obj_new_impl", false, false, false},
		{"kfunc bpf_percpu_obj_new_impl", false, false, false},
		{"kfunc bpf_strnchr", false, false, false},
		{"kfunc bpf_rcu_read_lock", true, true, true},
		{"kfunc bpf_preempt_disable", false, false, false},
		{"kfunc bpf_local_irq_save", false, false, false},
		{"kfunc bpf_skb_ct_lookup", false, false, false},
		{"kfunc bpf_cgroup_from_id", false, false, false},
		{"kfunc bpf_task_from_pid", false, false, false},
		{"kfunc bpf_copy_from_user_str", false, false, false},
	} {
		for hook, allowed := range map[string]bool{"uprobe": c.inTask, "cgroup/sysctl": c.inTask, "tcx/ingress": c.onPacket, "cgroup/connect4": c.onSocket} {
			// Its section says of no type.
			p := bytecode.Program{Name: "p", Type: "UnspecifiedProgram"}
			if kfunc, is := strings.CutPrefix(c.call, "kfunc "); is {
				p.Kfuncs = []string{kfunc}
			} else {
				p.Helpers = []string{c.call}
			}
			defined := []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: hook, Pods: &v1alpha1.Pods{}}}}}
			for kind, ok := range map[string]bool{v1alpha1.KindBpfApplication: allowed, v1alpha1.KindClusterBpfApplication: true} {
				r := &denials{}
				fitScope(r, v1alpha1.Identity{Kind: kind}, defined, bytecode.Facts{Programs: []bytecode.Program{p}})
				if (len(r.reasons) == 0) != ok {
					t.Errorf("%s calls %s on %s: %v, want it allowed: %v", kind, c.call, hook, r.reasons, ok)
				}
			}
		}
	}
	// A bridge of the Pod sends out what came in, with the socket of who sent it.
	for hook, want := range map[string]int{"tcx/egress": 1, "tc/egress": 1, "tc/ingress": 1, "cgroup_skb/ingress": 0} {
		r := &denials{}
		fitScope(r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}, []v1alpha1.Program{
			{Name: "p", Attach: []v1alpha1.Attachment{{Hook: hook, Pods: &v1alpha1.Pods{}}}},
		},
			bytecode.Facts{Programs: []bytecode.Program{{Name: "p", Helpers: []string{"bpf_get_socket_uid"}}}})
		if len(r.reasons) != want {
			t.Errorf("on %s: %v, want %d", hook, r.reasons, want)
		}
	}
	// A packet that is sent elsewhere passes the cluster's programs by. What XDP would send is dropped where one of these follows.
	for hook, want := range map[string]int{"tcx/ingress": 1, "tcx/egress": 1, "tc/egress": 1, "xdp": 0} {
		r := &denials{}
		fitScope(r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}, []v1alpha1.Program{
			{Name: "p", Attach: []v1alpha1.Attachment{{Hook: hook, Pods: &v1alpha1.Pods{}}}},
		},
			bytecode.Facts{Programs: []bytecode.Program{{Name: "p", Helpers: []string{"bpf_redirect"}}}})
		if len(r.reasons) != want {
			t.Errorf("bpf_redirect on %s: %v, want %d", hook, r.reasons, want)
		}
	}
	// One that may be tail called counts, whatever names it.
	facts := bytecode.Facts{Programs: []bytecode.Program{{Name: "p", Type: "XDP"}, {Name: "q", Type: "XDP", Helpers: []string{"bpf_get_current_comm"}}}}
	defined := []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: "xdp", Pods: &v1alpha1.Pods{}}}}}
	for maps, want := range map[string]int{"Array": 0, "ProgramArray": 1} {
		facts.Maps = []bytecode.Map{{Name: "m", Type: maps}}
		r := &denials{}
		if fitScope(r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}, defined, facts); len(r.reasons) != want {
			t.Errorf("beside a map of type %s: %v, want %d", maps, r.reasons, want)
		}
	}
}

// TestACallCountsWhereItMayBeTailCalled: a program runs where it is attached, and where another of its
// type is that has a prog array.
func TestACallCountsWhereItMayBeTailCalled(t *testing.T) {
	attached := func(name, hook string) v1alpha1.Program {
		return v1alpha1.Program{Name: name, Attach: []v1alpha1.Attachment{{Hook: hook, Pods: &v1alpha1.Pods{}}}}
	}
	for sentence, c := range map[string]struct {
		other, maps string
		denied      bool
	}{
		"where its own task makes a socket":          {"cgroup/sock_create", "ProgramArray", false},
		"beside a program that makes no tail calls":  {"cgroup/sock_release", "Array", false},
		"called by one where any task ends a socket": {"cgroup/sock_release", "ProgramArray", true},
		"beside tail calls of another type":          {"cgroup_skb/egress", "ProgramArray", false},
	} {
		facts := bytecode.Facts{
			Programs: []bytecode.Program{{Name: "asks", Helpers: []string{"bpf_get_current_comm"}}, {Name: "other"}},
			Maps:     []bytecode.Map{{Name: "m", Type: c.maps}},
		}
		r := &denials{}
		defined := []v1alpha1.Program{attached("asks", "cgroup/sock_create"), attached("other", c.other)}
		fitScope(r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication}, defined, facts)
		if (len(r.reasons) > 0) != c.denied {
			t.Errorf("%s: %v, want it denied: %v", sentence, r.reasons, c.denied)
		}
	}
}

// TestANumberIsDeniedByItself: helpers without a name are named by their numbers, and once.
func TestANumberIsDeniedByItself(t *testing.T) {
	facts := bytecode.Facts{Programs: []bytecode.Program{{Name: "p", UnknownHelpers: []int64{-1, 212}, ReadsKernelMemory: true,
		ReadsKernelMemoryBy: []string{"helper -1", "helper 212"}}}}
	r := &denials{}
	fitScope(r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication},
		[]v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: "xdp", Pods: &v1alpha1.Pods{}}}}}, facts)
	if len(r.reasons) != 1 || !strings.Contains(r.reasons[0].Message, "not known to stay in its Pods, and a BpfApplication may not: helper -1, helper 212") {
		t.Errorf("denied: %v", r.reasons)
	}
}

// TestAContextLeadsANamespaceNowhereElse: by stores to registers of a task, and by the socket of a packet.
func TestAContextLeadsANamespaceNowhereElse(t *testing.T) {
	for sentence, c := range map[string]struct {
		hook   string
		does   bytecode.Program
		denied bool
	}{
		"registers that a probe writes":  {"uprobe", bytecode.Program{WritesRegisters: true}, true},
		"the sender's socket":            {"tcx/ingress", bytecode.Program{ReadsPacketSocket: true}, true},
		"the sender's socket, by clsact": {"tc/ingress", bytecode.Program{ReadsPacketSocket: true}, true},
		"the same where packets go out":  {"tcx/egress", bytecode.Program{ReadsPacketSocket: true}, true},
		"nothing of it":                  {"tcx/ingress", bytecode.Program{}, false},
	} {
		c.does.Name = "p"
		for kind, want := range map[string]bool{v1alpha1.KindBpfApplication: c.denied, v1alpha1.KindClusterBpfApplication: false} {
			r := &denials{}
			fitScope(r, v1alpha1.Identity{Kind: kind}, []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: c.hook, Pods: &v1alpha1.Pods{}}}}},
				bytecode.Facts{Programs: []bytecode.Program{c.does}})
			if (len(r.reasons) > 0) != want {
				t.Errorf("%s of a %s: %v, want it denied: %v", sentence, kind, r.reasons, want)
			}
		}
	}
}

// TestMapsThatNothingBoundsAreDeniedANamespace, whatever policies there are.
func TestMapsThatNothingBoundsAreDeniedANamespace(t *testing.T) {
	defined := []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: "cgroup/sock_create", Pods: &v1alpha1.Pods{}}}}}
	for kind, denied := range map[string]bool{"SkStorage": true, "TaskStorage": true, "DevMap": true, "LRUHash": false, "a new one": true} {
		facts := bytecode.Facts{Programs: []bytecode.Program{{Name: "p"}}, Maps: []bytecode.Map{{Name: "storage", Type: kind}}}
		for _, scope := range []string{v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication} {
			r := &denials{}
			fitScope(r, v1alpha1.Identity{Kind: scope}, defined, facts)
			if want := denied && scope == v1alpha1.KindBpfApplication; (len(r.reasons) > 0) != want {
				t.Errorf("%s of a %s: %v, want it denied: %v", kind, scope, r.reasons, want)
			}
		}
	}
}

// TestANamespaceDecidesNothingForTheRuntime has programs answer in place of the kernel for the tasks of
// Pods. The container runtime is among these: it drops its rights in the Pod's cgroup.
func TestANamespaceDecidesNothingForTheRuntime(t *testing.T) {
	function := func(hook, name string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Functions: &v1alpha1.Functions{Names: []string{name}}, Pods: &v1alpha1.Pods{}}
	}
	for sentence, c := range map[string]struct {
		at      v1alpha1.Attachment
		allowed bool
	}{
		"in place of a system call":      {function("fmod_ret", "__x64_sys_capset"), false},
		"in place of a security module":  {function("fmod_ret", "security_sb_mount"), false},
		"as one":                         {function("lsm", "sb_mount"), false},
		"as one, of a cgroup":            {function("lsm_cgroup", "sb_mount"), false},
		"it sees a system call":          {function("fentry", "__x64_sys_capset"), true},
		"it sees what one returns":       {function("fexit", "__x64_sys_capset"), true},
		"it sees what a module is asked": {function("kprobe", "security_sb_mount"), true},
		"it decides for sockets":         {v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &v1alpha1.Pods{}}, true},
	} {
		defined := []v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{c.at}}}
		for kind, ok := range map[string]bool{v1alpha1.KindBpfApplication: c.allowed, v1alpha1.KindClusterBpfApplication: true} {
			r := &denials{}
			fitScope(r, v1alpha1.Identity{Kind: kind}, defined, bytecode.Facts{Programs: []bytecode.Program{{Name: "p", Type: "UnspecifiedProgram"}}})
			if (len(r.reasons) == 0) != ok {
				t.Errorf("%s, of a %s: %v, want it allowed: %v", sentence, kind, r.reasons, ok)
			}
		}
	}
}

// TestADeniedCallSaysWhatATeamCanDoInstead, and names nothing that is denied itself.
func TestADeniedCallSaysWhatATeamCanDoInstead(t *testing.T) {
	own := calls.Place{}
	for call, c := range map[string]struct{ hook, instead string }{
		"bpf_trace_printk":               {"kprobe", "ring buffer (bpf_ringbuf_output)"},
		"bpf_get_current_task":           {"uprobe", "by bpf_probe_read_user"},
		"bpf_timer_init":                 {"uprobe", "at a later event"},
		"bpf_copy_from_user":             {"uprobe", "by bpf_probe_read_user"},
		"bpf_task_storage_get":           {"uprobe", "LRUHash, by a key such as bpf_get_current_pid_tgid"},
		"bpf_sk_lookup_tcp":              {"tcx/ingress", "cgroup_skb/ingress"},
		"bpf_get_socket_uid":             {"tcx/ingress", "cgroup_skb/ingress"},
		"bpf_get_current_comm":           {"tcx/ingress", "such as at cgroup/connect4"},
		"bpf_probe_read_user":            {"cgroup/connect4", "at the system call"},
		"bpf_redirect":                   {"tcx/ingress", "on hook xdp"},
		"bpf_override_return":            {"uprobe", "returning 0 at cgroup/connect4"},
		"bpf_set_retval":                 {"cgroup/sysctl", "return 0 to deny"},
		"bpf_perf_event_read":            {"uprobe", "by bpf_ktime_get_ns"},
		"bpf_tcp_raw_gen_syncookie_ipv4": {"xdp", "use an image whose programs do not do so"},
	} {
		var r denials
		fitScope(&r, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication},
			[]v1alpha1.Program{{Name: "p", Attach: []v1alpha1.Attachment{{Hook: c.hook, Pods: &v1alpha1.Pods{}}}}},
			bytecode.Facts{Programs: []bytecode.Program{{Name: "p", Type: "UnspecifiedProgram", Helpers: []string{call}}}})
		fix := ""
		for _, reason := range r.reasons {
			if strings.HasSuffix(reason.Message, call) {
				fix = reason.Fix
			}
		}
		if !strings.Contains(fix, c.instead) || !strings.HasSuffix(fix, ", or use a ClusterBpfApplication") {
			t.Errorf("%s on %s: the fix is %q, want %q in it", call, c.hook, fix, c.instead)
		}
		for word := range strings.FieldsFuncSeq(fix, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) }) {
			if why := calls.Denied(word, own); strings.HasPrefix(word, "bpf_") && why != "" {
				t.Errorf("%s on %s: the fix names %s, which %s", call, c.hook, word, why)
			}
		}
	}
}
