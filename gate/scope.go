package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/hook"
)

// fitScope denies programs by which a namespace would see more than its own Pods, or reach others:
// those that read memory of the kernel or call what leads out of the Pods, and those that see what
// others do. No policy allows them. A program that the definition does not name counts where it
// may be tail called.
func fitScope(r *denials, id v1alpha1.Identity, programs []v1alpha1.Program, facts bytecode.Facts) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	// A program whose section says of no type is of the hook's, so that its name counts.
	named, runs, guarded, some := map[string]string{}, map[string]others{}, false, others{}
	attachments := map[string][]v1alpha1.Attachment{}
	for i, p := range programs {
		at := fmt.Sprintf("spec.programs[%d]", i)
		named[p.Name], attachments[p.Name] = at, append(attachments[p.Name], p.Attach...)
		fact, _ := facts.Program(p.Name)
		for k, a := range p.Attach {
			h, _ := hook.Lookup(a.Hook)
			guarded = guarded || h.Guardable()
			runs[p.Name], some = runs[p.Name].at(h), some.at(h)
			fitDecision(r, id, fmt.Sprintf("%s.attach[%d]", at, k), a, h)
			fitOffset(r, id, fmt.Sprintf("%s.attach[%d]", at, k), a)
			fitSubject(r, id, fmt.Sprintf("%s.attach[%d]", at, k), a, fact)
		}
	}
	for _, p := range facts.Programs {
		at, isNamed := named[p.Name]
		if !isNamed && !callsTails(facts) {
			continue
		}
		if at = cmp.Or(at, "spec.bytecode.image"); guarded && !isNamed && len(p.AsyncCallbacks) > 0 {
			denyLater(r, id, at, p)
		}
		in := some
		if isNamed {
			in = runs[p.Name]
		}
		fitCalls(r, id, at, p, in)
		if p.ReadsKernelMemory && !(isNamed && readsRegisters(attachments[p.Name], p)) {
			denyProgram(r, id, at, p, "reads memory of the kernel, which belongs to all namespaces", p.ReadsKernelMemoryBy)
		}
	}
}

// readsRegisters reports whether a program finds the registers of the current task, and nothing
// else, at the addresses that it makes, wherever it is attached. The agent has it read nothing but
// these registers (guard.BoundReads), so an address that is not what it looks like shows nothing.
// A program that is reached otherwise, by a tail call, is none.
func readsRegisters(attached []v1alpha1.Attachment, p bytecode.Program) bool {
	if len(p.ReadsRegistersBy) != 1 {
		return false
	}
	for _, a := range attached {
		// Behind its beginning a function has other values in the registers of its arguments.
		if a.Functions != nil && a.Functions.Offset != 0 {
			return false
		}
		for _, target := range targetsOf(a) {
			if hook.RegistersAt(a.Hook, target) != p.ReadsRegistersBy[0] {
				return false
			}
		}
	}
	return len(attached) > 0
}

// targetsOf are the tracepoint or the functions that an attachment names, or one empty target.
func targetsOf(a v1alpha1.Attachment) []string {
	if a.Functions != nil {
		return a.Functions.Names
	}
	return []string{a.Tracepoint}
}

// denyProgram denies a program for what it does by some of its calls.
func denyProgram(r *denials, id v1alpha1.Identity, at string, p bytecode.Program, does string, by []string) {
	r.add("inspect/scope", at, "use a "+v1alpha1.KindClusterBpfApplication+", or an image whose programs do not do so",
		"program %s %s, and a %s may not: %s", p.Name, does, id.Kind, strings.Join(by, ", "))
}

// others says which tasks a program may run in that are not of its Pods.
type others struct {
	// besides: any task. The receive path of a packet runs in whatever task is interrupted, or sends it.
	besides bool
	// handed: one that uses a socket of a Pod which it was handed (SCM_RIGHTS of unix(7)). A socket
	// stays in the cgroup of the task that made it.
	handed bool
	// sent: a packet that comes in may have the socket that sent it, in another Pod. The kernel keeps
	// it with the packet between network namespaces until it routes the packet (skb_scrub_packet).
	sent bool
}

// at adds those of a hook.
func (o others) at(h hook.Hook) others {
	o.besides = o.besides || !h.Guardable() && hook.SubjectOf(h.Name, "") != hook.Current
	o.handed = o.handed || slices.Contains([]ebpf.ProgramType{ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt}, h.ProgramType)
	o.sent = o.sent || h.ProgramType == ebpf.SchedCLS && strings.HasSuffix(h.Name, "/ingress")
	return o
}

// fitCalls denies calls that lead out of the Pods, also by the task that the program runs in.
func fitCalls(r *denials, id v1alpha1.Identity, at string, p bytecode.Program, in others) {
	for _, c := range []struct {
		does string
		is   func(name string) bool
		when bool
	}{
		// They take the id of a network namespace, and a Pod's device has the node's as a peer.
		{"finds sockets of other network namespaces", isOneOf("bpf_sk_lookup_tcp", "bpf_sk_lookup_udp", "bpf_skc_lookup_tcp"), true},
		// A container runtime denies devices by a program at the container's cgroup, and those at the
		// Pod's run after it.
		{"can lift what another program at a cgroup denied, such as devices of the node", isOneOf("bpf_set_retval"), true},
		{
			"decides for the container runtime, which takes rights of the node from itself in the Pod's cgroup", isOneOf("bpf_override_return", "bpf_probe_write_user"),
			true,
		},
		// A page of a file that does not come holds up the end of everybody's probes.
		{"sleeps for as long as a file of the Pod takes", isOneOf("bpf_copy_from_user", "bpf_copy_from_user_task"), true},
		{"sees the task that happens to run, which may be of any namespace", seesTask, in.besides},
		{"reads memory of the task that uses a socket, which may be of another namespace and was handed it",
			isOneOf("bpf_probe_read_user", "bpf_probe_read_user_str"),
			in.handed && !in.besides},
		{"looks at the socket of a packet that comes in, which may be the sender's in another namespace", seesSocket, in.sent},
	} {
		if by := slices.DeleteFunc(slices.Clone(p.Helpers), func(name string) bool { return !c.is(name) }); c.when && len(by) > 0 {
			denyProgram(r, id, at, p, c.does, by)
		}
	}
	if in.besides && len(p.AsyncCallbacks) > 0 {
		denyLater(r, id, at, p)
	}
	if by := slices.DeleteFunc(slices.Clone(p.Kfuncs), isKfuncOfPods); len(by) > 0 {
		denyProgram(r, id, at, p, "calls functions of the kernel that are not known to stay in its Pods", by)
	}
}

func isOneOf(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// seesTask reports whether a helper is about the current task or its memory.
func seesTask(name string) bool {
	return strings.HasPrefix(name, "bpf_get_current_") || strings.HasPrefix(name, "bpf_probe_read") ||
		slices.Contains([]string{"bpf_current_task_under_cgroup", "bpf_get_task_stack", "bpf_get_stack", "bpf_get_stackid", "bpf_send_signal",
			"bpf_send_signal_thread",
			"bpf_get_ns_current_pid_tgid", "bpf_probe_write_user", "bpf_task_pt_regs", "bpf_get_cgroup_classid", "bpf_skb_cgroup_classid"}, name)
}

// seesSocket reports whether a helper is about the socket of a packet, its owner or its cgroup.
func seesSocket(name string) bool {
	return strings.HasPrefix(name, "bpf_skc_to_") || strings.HasPrefix(name, "bpf_sk_storage_") ||
		slices.Contains([]string{"bpf_get_socket_uid", "bpf_get_socket_cookie",
			"bpf_get_netns_cookie", "bpf_skb_cgroup_id", "bpf_skb_ancestor_cgroup_id", "bpf_skb_under_cgroup", "bpf_sk_cgroup_id", "bpf_sk_ancestor_cgroup_id",
			"bpf_sk_fullsock", "bpf_tcp_sock", "bpf_get_listener_sock"}, name)
}

// isKfuncOfPods reports whether a kfunc works on memory of the program, on its packet, or on
// numbers: nothing of it leads to another namespace. bpf_obj_new and bpf_percpu_obj_new are none:
// all programs of the node share one allocator (bpf_global_ma), which clears nothing, so that an
// object holds what another namespace's program freed. Neither are bpf_strlen and its like, which
// read at any address, or bpf_local_irq_save and bpf_preempt_disable: a program that then loops
// takes its CPU from everybody.
func isKfuncOfPods(name string) bool {
	for _, prefix := range []string{"bpf_dynptr_", "bpf_iter_num_", "bpf_list_", "bpf_rbtree_", "bpf_obj_drop", "bpf_percpu_obj_drop", "bpf_xdp_metadata_rx_",
		"bpf_session_",
		"bpf_rcu_read_", "bpf_arena_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"bpf_refcount_acquire_impl", "bpf_refcount_acquire"}, name)
}

// fitDecision denies hooks by which a program answers in place of the kernel for a task. The tasks
// of a Pod are not only its own: the container runtime begins in the Pod's cgroup with all rights of
// the node, at every start and every exec, and asks the kernel to take them away.
func fitDecision(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment, h hook.Hook) {
	if h.Risk == hook.Control && (h.Guardable() || h.ProgramType == ebpf.LSM) {
		r.add("inspect/scope", at+".hook", "use a hook that observes, such as fexit or tracepoint, or use a "+v1alpha1.KindClusterBpfApplication,
			"%s decides for the container runtime, too, which takes rights of the node from itself in the Pod's cgroup, so that a %s could keep them for its Pods",
			a.Hook, id.Kind)
	}
}

// fitOffset denies a probe in the middle of a function. It is written into a file that Pods of other
// namespaces share, and their processes run what it makes of an instruction.
func fitOffset(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment) {
	if a.Binary != nil && a.Binary.Offset != 0 {
		r.add("inspect/scope", at+".binary.offset", "give binary.symbol alone, or use a "+v1alpha1.KindClusterBpfApplication,
			"an offset may lie inside of an instruction, and a %s attaches to the beginning of functions alone: other namespaces run the same file", id.Kind)
	}
}

// callsTails reports whether a program of the object may run that the definition does not name.
func callsTails(facts bytecode.Facts) bool {
	for _, m := range facts.Maps {
		if m.Type == ebpf.ProgramArray.String() {
			return true
		}
	}
	return false
}

// denyLater denies a program of which parts run when the guard is over.
func denyLater(r *denials, id v1alpha1.Identity, at string, fact bytecode.Program) {
	denyProgram(r, id, at, fact, "has parts that run later, for any task of the node", fact.AsyncCallbacks)
}

// fitSubject denies an attachment that needs a guard to a program whose events are not the doing
// of the current task.
func fitSubject(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment, fact bytecode.Program) {
	h, ok := hook.Lookup(a.Hook)
	if !ok || a.Pods == nil || !h.Guardable() {
		return
	}
	if len(fact.AsyncCallbacks) > 0 {
		denyLater(r, id, at, fact)
		return
	}
	field := "tracepoint"
	if a.Functions != nil {
		field = "functions"
	}
	for _, target := range targetsOf(a) {
		if fact.SubjectAt(h.Name, target) != hook.Current {
			r.add("inspect/scope", at+"."+field, "attach to a system call, to a function or tracepoint of one, or to a binary, or use a "+
				v1alpha1.KindClusterBpfApplication,
				"%s %s is not known to run for the task alone that causes it, so that a %s would see what other namespaces do", h.Name, target, id.Kind)
		}
	}
}
