package bytecode

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode/pointers"
	"github.com/skep-dev/skep/hook"
)

// SubjectAt is whose doing the program sees where it is attached to a target of a hook: that
// of hook.SubjectOf, unless some of it runs later, for any task.
func (p Program) SubjectAt(hookName, target string) hook.Subject {
	if len(p.AsyncCallbacks) > 0 {
		return hook.Any
	}
	return hook.SubjectOf(hookName, target)
}

// isAsync reports whether a helper or kfunc has the kernel call a function of the program
// later: a timer in an interrupt, a work queue in a kernel thread, task work in the task
// that it is meant for. Callbacks of loops and of ring buffers run at once.
func isAsync(name string) bool {
	return slices.Contains([]string{"bpf_timer_set_callback", "bpf_wq_set_callback_impl", "bpf_wq_set_callback", "bpf_task_work_schedule_signal",
		"bpf_task_work_schedule_resume", "bpf_task_work_schedule_signal_impl", "bpf_task_work_schedule_resume_impl"}, name)
}

// finishSubject says whose doing the program sees where its section has it attached.
func (p *inspected) finishSubject(t ebpf.ProgramType) {
	f := &p.facts
	for _, name := range slices.Concat(f.Helpers, f.Kfuncs) {
		if isAsync(name) {
			f.AsyncCallbacks = append(f.AsyncCallbacks, name)
		}
	}
	if f.Subject = f.SubjectAt(f.Hook, f.Target); f.Hook == "" && len(f.AsyncCallbacks) == 0 {
		f.Subject = hook.SubjectOfType(t)
	}
}

// helperReads reports whether a call of a helper reads memory of the kernel, or of another
// process, that the hook does not hand out, or tells where it lies.
func helperReads(h Helper) bool {
	switch h.Name {
	case "bpf_get_current_task_btf":
		// The pointer alone is what task storage takes: loads through it are found.
		return false
	case "bpf_copy_from_user_task":
		// Of any process.
		return true
	case "bpf_snprintf", "bpf_seq_printf", "bpf_trace_printk", "bpf_trace_vprintk":
		// %s and %pI4 of a number read at that address of the kernel. No program reads what
		// bpf_trace_printk writes, and the length that it returns says enough.
		return true
	case "bpf_xdp_adjust_head", "bpf_xdp_adjust_meta":
		// What they add before a packet has what the kernel left there: pointers, and packets of
		// others. They clear nothing, unlike bpf_xdp_adjust_tail and the helpers of skbs.
		return true
	case "bpf_read_branch_records", "bpf_get_branch_snapshot":
		// Addresses of the kernel's code.
		return true
	}
	// bpf_probe_read and its like, the kernel's stack and its addresses, variables of each
	// CPU, registers of a task, symbols. Not bpf_kptr_xchg, bpf_find_vma and bpf_skc_to_*:
	// loads through what they return are found. Not task, inode and socket storage, which is
	// the program's own, nor bpf_d_path, which is about the file that the hook hands out.
	return h.Risk == ReadsKernelMemory
}

// kfuncReads is helperReads for kfuncs: one without a row, such as a kfunc of a module,
// may read anything.
func kfuncReads(name string) bool {
	switch name {
	case "bpf_copy_from_user_task_str", "bpf_copy_from_user_task_dynptr", "bpf_copy_from_user_task_str_dynptr":
		return true
	}
	return kfuncKernel(name) == "" || slices.ContainsFunc(RiskyKfuncs(), func(k Kfunc) bool { return k.Name == name && k.Risk == ReadsKernelMemory })
}

// finishReads says by what the program reads memory of the kernel.
func (p *inspected) finishReads(t ebpf.ProgramType, insns asm.Instructions) {
	f := &p.facts
	harmless, registers, rights := harmlessCalls{}, registerReads{}, lifts{}
	called := func(id int64, arguments [5]pointers.Passed) {
		harmless.called(id, arguments)
		registers.called(id, arguments)
		rights.called(id, arguments)
	}
	rules := pointers.Rules{Fields: fieldsOf(t), Helper: helperReturns, Kfunc: kfuncReturns, Copied: helperCopies, Called: called}
	if t == ebpf.CGroupSockAddr {
		rules.Returned = rights.returned
	}
	load := pointers.ForeignLoad(insns, rules)
	rights.finish(p, t, insns)
	var by []string
	for _, name := range f.Helpers {
		if helperReads(p.helpers[name]) && !harmless[name] {
			by = append(by, name)
		}
	}
	for _, id := range f.UnknownHelpers {
		by = append(by, unknownHelper(id))
	}
	for _, name := range f.Kfuncs {
		if kfuncReads(name) {
			by = append(by, name)
		}
	}
	for _, name := range f.Ksyms {
		// A kfunc that is called is asked for here, too, where it may be missing.
		if !p.kfuncs[name] {
			by = append(by, byVariable+name)
		}
	}
	if load != "" {
		by = append(by, load)
	}
	f.ReadsKernelMemory, f.ReadsKernelMemoryBy = len(by) > 0, by
	if slices.Equal(by, []string{readsRegisters}) {
		f.ReadsRegistersBy = registers.addresses()
	}
}

// readsRegisters is the helper by which bpf_usdt_arg and BPF_KSYSCALL read registers.
const readsRegisters = "bpf_probe_read_kernel"

// registerReads is from what the program makes the addresses at which it calls readsRegisters.
type registerReads map[pointers.Memory]bool

func (r registerReads) called(id int64, arguments [5]pointers.Passed) {
	if h, _ := helperByID(id); h.Name == readsRegisters {
		r[arguments[2].Memory] = true
	}
}

// addresses are those of registers; none if there is another one.
func (r registerReads) addresses() []hook.Registers {
	var by []hook.Registers
	for memory := range r {
		switch memory {
		case pointers.Context:
			by = append(by, hook.InContext)
		case pointers.Argument:
			by = append(by, hook.InArgument)
		default:
			return nil
		}
	}
	slices.Sort(by)
	return by
}

// harmlessCalls are helpers, and whether all calls of one are harmless by a number that they pass:
// they read the stack of the current task in its own memory, or only take bytes off a packet.
type harmlessCalls map[string]bool

// flagUserStack is BPF_F_USER_STACK.
const flagUserStack = 1 << 8

func (u harmlessCalls) called(id int64, arguments [5]pointers.Passed) {
	h, _ := helperByID(id)
	var is bool
	switch h.Name {
	case "bpf_get_stackid":
		is = arguments[2].Number&flagUserStack != 0
	case "bpf_get_stack":
		is = arguments[3].Number&flagUserStack != 0
	case "bpf_xdp_adjust_head", "bpf_xdp_adjust_meta":
		is = arguments[1].Number > 0
	default:
		return
	}
	before, seen := u[h.Name]
	u[h.Name] = is && (before || !seen)
}

// fieldsOf is what pointers in the context of a type of program lead to.
func fieldsOf(t ebpf.ProgramType) pointers.Memory {
	switch t {
	case ebpf.Kprobe, ebpf.RawTracepoint:
		// To the verifier all fields are numbers, and some are the address of registers.
		return pointers.Argument
	case ebpf.TracePoint, ebpf.PerfEvent, ebpf.Syscall, ebpf.LircMode2:
		return pointers.Number
	case ebpf.Tracing, ebpf.LSM, ebpf.Extension, ebpf.StructOps, ebpf.UnspecifiedProgram, ebpf.Netfilter:
		// Arguments of a function of the kernel.
		return pointers.Foreign
	}
	// Packets, sockets by the fields that the kernel offers of them, and the buffer of a
	// writable tracepoint.
	return pointers.Own
}

// helperCopies is which arguments of a helper point to memory that it copies: into maps, events,
// packets, buffers, or numbers that the program reads.
func helperCopies(id int64) []int {
	h, _ := helperByID(id)
	switch h.Name {
	case "bpf_csum_diff":
		return []int{0, 2}
	case "bpf_strncmp":
		return []int{0, 2}
	case "bpf_strtol", "bpf_strtoul", "bpf_dynptr_from_mem", "bpf_trace_printk":
		return []int{0}
	case "bpf_map_update_elem":
		return []int{1, 2}
	case "bpf_map_lookup_elem", "bpf_map_delete_elem", "bpf_map_push_elem", "bpf_map_lookup_percpu_elem", "bpf_ringbuf_output", "bpf_seq_write",
		"bpf_probe_write_user", "bpf_skb_set_tunnel_key", "bpf_skb_set_tunnel_opt", "bpf_sysctl_set_new_value", "bpf_bind", "bpf_fib_lookup":
		return []int{1}
	case "bpf_skb_store_bytes", "bpf_xdp_store_bytes", "bpf_dynptr_write", "bpf_lwt_push_encap", "bpf_sock_map_update", "bpf_sock_hash_update",
		"bpf_msg_redirect_hash", "bpf_sk_redirect_hash", "bpf_sk_storage_get", "bpf_task_storage_get", "bpf_inode_storage_get", "bpf_cgrp_storage_get":
		return []int{2}
	case "bpf_perf_event_output", "bpf_skb_output", "bpf_xdp_output", "bpf_setsockopt":
		return []int{3}
	}
	return nil
}

// helperReturns is what pointers that a helper returns lead to.
func helperReturns(id int64) pointers.Memory {
	h, ok := helperByID(id)
	if !ok {
		return pointers.Foreign
	}
	switch h.Name {
	case "bpf_map_lookup_elem", "bpf_map_lookup_percpu_elem", "bpf_ringbuf_reserve", "bpf_dynptr_data", "bpf_get_local_storage",
		"bpf_sk_storage_get", "bpf_inode_storage_get", "bpf_task_storage_get", "bpf_cgrp_storage_get",
		"bpf_sk_lookup_tcp", "bpf_sk_lookup_udp", "bpf_skc_lookup_tcp", "bpf_sk_fullsock", "bpf_tcp_sock", "bpf_get_listener_sock":
		return pointers.Own
	case "bpf_get_current_task_btf", "bpf_task_pt_regs", "bpf_kptr_xchg", "bpf_per_cpu_ptr", "bpf_this_cpu_ptr", "bpf_sock_from_file",
		"bpf_skc_to_tcp6_sock", "bpf_skc_to_tcp_sock", "bpf_skc_to_tcp_timewait_sock", "bpf_skc_to_tcp_request_sock",
		"bpf_skc_to_udp6_sock", "bpf_skc_to_unix_sock", "bpf_skc_to_mptcp_sock":
		return pointers.Foreign
	}
	return pointers.Number
}

// kfuncReturns is what pointers that a kfunc returns lead to.
func kfuncReturns(name string) pointers.Memory {
	switch name {
	case "bpf_dynptr_slice", "bpf_dynptr_slice_rdwr", "bpf_iter_num_next", "bpf_obj_new_impl", "bpf_percpu_obj_new_impl", "bpf_refcount_acquire_impl",
		"bpf_list_pop_front", "bpf_list_pop_back", "bpf_rbtree_first", "bpf_rbtree_remove", "bpf_arena_alloc_pages", "bpf_session_cookie":
		return pointers.Own
	}
	return pointers.Foreign
}
