package calls

// Reasons of more than one row.
const (
	goesAround  = "sends a packet past programs of the cluster that are to see it"
	lifts       = "can lift what another program at a cgroup denied, such as devices of the node"
	readsText   = "has the kernel write text, and its length tells what lies at any address of the kernel"
	runsLater   = "has parts that run later, for any task of the node"
	sleeps      = "sleeps for as long as a file of the Pod takes"
	stores      = "stores on sockets, tasks, inodes or cgroups, in memory of the agent that nothing bounds"
	findsOthers = "finds sockets of other network namespaces"
	usesSecret  = "uses the secret by which all network namespaces of the node know their SYN cookies"
	decides     = "decides for the container runtime, which takes rights of the node from itself in the Pod's cgroup"
	counts      = "reads counters of a CPU, which counts what all namespaces do"
	noHook      = "calls what no hook of a namespace offers"
)

// helpers are the rows of the helpers, which the kernel numbers. Each number that
// bytecode.Helpers has is in one row.
var helpers = []Row{
	{
		"bpf_map_lookup_elem bpf_map_lookup_percpu_elem bpf_map_peek_elem bpf_map_pop_elem bpf_map_update_elem bpf_map_delete_elem bpf_map_push_elem " +
			"bpf_for_each_map_elem bpf_spin_lock bpf_spin_unlock bpf_kptr_xchg",
		"values of a map, or whether the call worked", "maps of the application", "the application", Everywhere, "",
		"check_map_func_compatibility, kernel/bpf/verifier.c: the map is one that the program refers to",
	},
	{
		"bpf_ringbuf_output bpf_ringbuf_reserve bpf_ringbuf_submit bpf_ringbuf_discard bpf_ringbuf_query bpf_ringbuf_reserve_dynptr bpf_ringbuf_submit_dynptr " +
			"bpf_ringbuf_discard_dynptr bpf_user_ringbuf_drain bpf_perf_event_output",
		"how full a buffer is, and what its reader wrote", "buffers of the application", "the application", Everywhere, "",
		"check_map_func_compatibility, kernel/bpf/verifier.c",
	},
	{
		"bpf_dynptr_from_mem bpf_dynptr_read bpf_dynptr_write bpf_dynptr_data bpf_strncmp bpf_strtol bpf_strtoul bpf_csum_diff",
		"what the program's own memory holds", "memory of the program", "the program", Everywhere, "",
		"check_func_arg, kernel/bpf/verifier.c: ARG_PTR_TO_MEM of a known size; TestWhatReadsKernelMemory",
	},
	{
		"bpf_tail_call bpf_loop bpf_get_attach_cookie",
		"nothing but numbers of the program", "", "the program", Everywhere, "",
		"fixup_bpf_calls of kernel/bpf/verifier.c; TestACallLeadsANamespaceNowhereElse",
	},
	{
		"bpf_ktime_get_ns bpf_ktime_get_boot_ns bpf_ktime_get_coarse_ns bpf_ktime_get_tai_ns bpf_jiffies64 bpf_get_prandom_u32 bpf_get_smp_processor_id " +
			"bpf_get_numa_node_id",
		"the time, a CPU or a random number", "", "the node", Everywhere, "", "kernel/bpf/helpers.c: no arguments; every process may ask the same",
	},
	{
		"bpf_skb_load_bytes bpf_skb_load_bytes_relative bpf_skb_store_bytes bpf_l3_csum_replace bpf_l4_csum_replace bpf_csum_update bpf_csum_level " +
			"bpf_skb_vlan_push bpf_skb_vlan_pop bpf_skb_change_proto bpf_skb_change_type bpf_skb_change_tail bpf_skb_change_head bpf_skb_pull_data " +
			"bpf_skb_adjust_room bpf_set_hash_invalid bpf_set_hash bpf_get_hash_recalc bpf_skb_ecn_set_ce bpf_skb_get_tunnel_key " +
			"bpf_skb_get_tunnel_opt bpf_skb_get_xfrm_state bpf_get_route_realm",
		"bytes and fields of the packet", "the packet", "the packet", Everywhere, "",
		"net/core/filter.c: of the skb alone; skb_scrub_packet drops what another network namespace noted",
	},
	{
		"bpf_skb_set_tstamp bpf_skb_set_tunnel_key bpf_skb_set_tunnel_opt",
		"whether the call worked", "when and where a device sends the packet", "the packet", Nowhere,
		"notes beside a packet what a device of the node reads, where that of the Pod is a macvlan",
		"macvlan_queue_xmit, drivers/net/macvlan.c, scrubs nothing; stores to tstamp and mark are denied for the same reason (bytecode/lifts.go)",
	},
	{
		"bpf_xdp_get_buff_len bpf_xdp_load_bytes bpf_xdp_store_bytes bpf_xdp_adjust_tail",
		"bytes of the packet", "the packet", "the packet", Everywhere, "",
		"net/core/filter.c: bpf_xdp_adjust_tail clears what it adds",
	},
	{
		"bpf_xdp_adjust_head bpf_xdp_adjust_meta",
		"what lies before the packet, unless they take bytes off", "the packet", "the packet, or the kernel", Everywhere, "",
		"TestWhatReadsKernelMemory: readsKernelMemory decides",
	},
	{
		"bpf_redirect bpf_redirect_neigh bpf_clone_redirect",
		"whether there is such a device", "where the packet goes, with the socket that sent it", "the Pod's network namespace", OffTraffic,
		goesAround,
		"net/core/filter.c: skb_do_redirect, __bpf_redirect; TestATeamHidesNoPacketFromTheCluster; in a chain of XDP, the verdict is bounded",
	},
	{
		"bpf_redirect_map bpf_fib_lookup bpf_check_mtu",
		"routes, neighbours and devices", "where the packet goes", "the Pod's network namespace", Everywhere, "",
		"net/core/filter.c: dev_get_by_index_rcu(dev_net(dev)); maps of devices are denied (Maps)",
	},
	{
		"bpf_redirect_peer",
		"nothing", "where the packet goes", "the node's network namespace", Nowhere,
		"sends packets into the network namespace of a device's peer, which is the node's",
		"skb_do_redirect, net/core/filter.c: BPF_F_PEER",
	},
	{
		"bpf_setsockopt",
		"whether it worked", "options that every task may set, named by constants: no mark, device, priority or congestion control, and none of level 0 (IPPROTO_IP)",
		"the socket of the hook", Everywhere, "", "net/core/sock.c: sockopt_ns_capable asks for nothing; TestATaskGetsNoRightsOfATeam",
	},
	{
		"bpf_getsockopt bpf_load_hdr_opt bpf_sk_release",
		"options of the socket", "", "the socket of the hook", Everywhere, "", "net/core/filter.c: of ctx->sk alone",
	},
	{
		"bpf_sock_ops_cb_flags_set",
		"whether it worked", "which callbacks the socket has: it adds some, and takes none from others", "the socket of the hook", Everywhere, "",
		"guard.KeepCallbacks; TestATeamTakesNoCallbackFromTheCluster",
	},
	{
		"bpf_store_hdr_opt bpf_reserve_hdr_opt",
		"whether there is room", "options of a packet's TCP header", "the socket of the hook", Nowhere,
		"writes options of TCP headers before programs of the cluster, which find one of their kind, or no room",
		"bpf_sock_ops_store_hdr_opt, net/core/filter.c: EEXIST, ENOSPC",
	},
	{
		"bpf_bind",
		"nothing", "the socket's own address", "the socket of the hook", Nowhere, "binds a socket without asking the cluster's programs on bind",
		"net/ipv4/af_inet.c: BIND_FROM_BPF; TestABindOfAProgramAsksNoOther",
	},
	{
		"bpf_get_retval",
		"what the kernel is about to return", "", "the task", Everywhere, "", "TestACallLeadsANamespaceNowhereElse",
	},
	{
		"bpf_sysctl_get_name bpf_sysctl_get_current_value bpf_sysctl_get_new_value bpf_sysctl_set_new_value",
		"a setting that the task reads or writes", "the value that the task writes", "the task", Everywhere, "", "kernel/bpf/cgroup.c: of ctx alone",
	},
	{
		"bpf_get_socket_cookie bpf_get_socket_uid bpf_get_netns_cookie bpf_skb_cgroup_id bpf_skb_ancestor_cgroup_id bpf_skb_under_cgroup bpf_sk_cgroup_id " +
			"bpf_sk_ancestor_cgroup_id bpf_sk_fullsock bpf_tcp_sock bpf_get_listener_sock bpf_sk_assign bpf_skc_to_tcp6_sock bpf_skc_to_tcp_sock " +
			"bpf_skc_to_tcp_timewait_sock bpf_skc_to_tcp_request_sock bpf_skc_to_udp6_sock bpf_skc_to_unix_sock bpf_skc_to_mptcp_sock",
		"whose socket it is", "", "the packet's socket", OnOwnSockets, "", "skb_scrub_packet, net/core/skbuff.c: skb->sk stays; TestACallLeadsANamespaceNowhereElse",
	},
	{
		"bpf_get_current_pid_tgid bpf_get_current_uid_gid bpf_get_current_comm bpf_get_ns_current_pid_tgid bpf_get_current_cgroup_id " +
			"bpf_get_current_ancestor_cgroup_id bpf_current_task_under_cgroup bpf_get_cgroup_classid bpf_skb_cgroup_classid bpf_get_current_task_btf",
		"who the current task is", "", "the current task", InTasks, "", "kernel/bpf/helpers.c: current; TestACallLeadsANamespaceNowhereElse",
	},
	{
		"bpf_get_stack bpf_get_stackid",
		"the task's stack, or without BPF_F_USER_STACK the kernel's", "", "the current task", InTasks, "", "TestWhatReadsKernelMemory: readsKernelMemory decides",
	},
	{
		"bpf_probe_read_kernel",
		"registers of the current task", "", "the current task", InTasks, "", "TestReadsAreBoundToTheRegistersOfTheTask",
	},
	{
		"bpf_get_func_ip bpf_get_func_arg bpf_get_func_ret bpf_get_func_arg_cnt bpf_find_vma bpf_d_path bpf_sock_from_file bpf_skb_output bpf_xdp_output",
		"arguments of the traced function", "", "the current task", InTasks, "",
		"kernel/trace/bpf_trace.c: of the hook's context; loads through what they return are found",
	},
	{
		"bpf_send_signal bpf_send_signal_thread",
		"whether the task lives", "a signal to the task", "the current task", InTasks, "", "bpf_send_signal_common, kernel/trace/bpf_trace.c: current",
	},
	{
		"bpf_probe_read_user bpf_probe_read_user_str",
		"memory of the task's process", "", "the current task", InOwnTasks, "", "bpf_probe_read_user_common, kernel/trace/bpf_trace.c: current->mm",
	},
	{
		"bpf_probe_read bpf_probe_read_str bpf_probe_read_kernel_str bpf_get_current_task bpf_get_task_stack bpf_task_pt_regs bpf_per_cpu_ptr bpf_this_cpu_ptr " +
			"bpf_kallsyms_lookup_name bpf_read_branch_records bpf_get_branch_snapshot",
		"memory and addresses of the kernel", "", "the kernel", Nowhere, ReadsKernel, "TestWhatReadsKernelMemory",
	},
	{
		"bpf_trace_printk bpf_trace_vprintk bpf_snprintf bpf_snprintf_btf",
		"what an address of the kernel holds: by %s and %pI4 also from the length", "a log of the whole node", "the kernel", Nowhere, readsText,
		"bpf_trace_printk, kernel/trace/bpf_trace.c: returns bstr_printf; TestTheLengthOfAPrintTellsMemory",
	},
	{
		"bpf_seq_printf bpf_seq_write bpf_seq_printf_btf",
		"what an address of the kernel holds", "the file of an iterator", "the kernel", Nowhere, readsText, "kernel/trace/bpf_trace.c: seq_bprintf",
	},
	{
		"bpf_override_return bpf_probe_write_user bpf_bprm_opts_set",
		"nothing", "what the kernel or a process does", "the current task", Nowhere, decides, "TestANamespaceDecidesNothingForTheRuntime",
	},
	{
		"bpf_set_retval",
		"nothing", "what another program answered", "the task", Nowhere, lifts,
		"TestAProgramOfAPodLiftsWhatAContainerIsDenied",
	},
	{
		"bpf_copy_from_user bpf_copy_from_user_task bpf_ima_inode_hash bpf_ima_file_hash",
		"memory of a process, or of a file", "", "a task or a file", Nowhere, sleeps, "TestACallLeadsANamespaceNowhereElse",
	},
	{
		"bpf_sk_lookup_tcp bpf_sk_lookup_udp bpf_skc_lookup_tcp",
		"sockets by address", "", "any network namespace", Nowhere, findsOthers, "__bpf_sk_lookup, net/core/filter.c: takes the id of a network namespace",
	},
	{
		"bpf_tcp_check_syncookie bpf_tcp_gen_syncookie bpf_tcp_raw_gen_syncookie_ipv4 bpf_tcp_raw_gen_syncookie_ipv6 bpf_tcp_raw_check_syncookie_ipv4 " +
			"bpf_tcp_raw_check_syncookie_ipv6",
		"the cookie of any connection", "", "the node", Nowhere, usesSecret, "cookie_hash, net/ipv4/syncookies.c: syncookie_secret is of the whole kernel",
	},
	{
		"bpf_sk_storage_get bpf_sk_storage_delete bpf_inode_storage_get bpf_inode_storage_delete bpf_task_storage_get bpf_task_storage_delete " +
			"bpf_cgrp_storage_get bpf_cgrp_storage_delete bpf_get_local_storage",
		"what the application stored", "memory of the agent", "sockets, tasks, inodes, cgroups", Nowhere, stores,
		"bpf_selem_alloc, kernel/bpf/bpf_local_storage.c: one for each owner; TestMapsThatANamespaceMayHave",
	},
	{
		"bpf_timer_init bpf_timer_set_callback bpf_timer_start bpf_timer_cancel",
		"nothing", "a timer of the program", "whatever task is interrupted", Nowhere, runsLater, "bpf_timer_cb, kernel/bpf/helpers.c: in softirq",
	},
	{
		"bpf_perf_event_read bpf_perf_event_read_value bpf_perf_prog_read_value",
		"counters of a CPU", "", "the node", Nowhere, counts, "get_map_perf_counter, kernel/trace/bpf_trace.c",
	},
	{
		"bpf_sys_bpf bpf_sys_close bpf_btf_find_by_name_kind",
		"what a system call answers", "what a system call changes", "the agent", Nowhere, "makes system calls as the agent",
		"kernel/bpf/syscall.c: syscall_prog_func_proto",
	},
	{
		"bpf_sock_map_update bpf_sock_hash_update",
		"whether the call worked", "a map of sockets", "the socket of the hook", Nowhere, "keeps sockets in a map, for programs that no hook of a namespace attaches",
		"sock_map_update_common, net/core/sock_map.c",
	},
	{
		"bpf_sk_redirect_map bpf_msg_redirect_map bpf_msg_apply_bytes bpf_msg_cork_bytes bpf_msg_pull_data bpf_msg_push_data bpf_msg_pop_data " +
			"bpf_msg_redirect_hash bpf_sk_redirect_hash bpf_sk_select_reuseport bpf_lwt_push_encap bpf_lwt_seg6_store_bytes " +
			"bpf_lwt_seg6_adjust_srh bpf_lwt_seg6_action bpf_rc_repeat bpf_rc_keydown bpf_rc_pointer_rel bpf_tcp_send_ack",
		"of sockets of maps, routes, receivers of infrared light and congestion control", "the same", "the node", Nowhere, noHook, "TestNoHookOfANamespaceOffersThem",
	},
}

// kfuncs are the rows of the kernel's functions that programs call by name. Those that it does not
// have are denied. bpf_obj_new and bpf_percpu_obj_new are not in it: all programs of the node share one
// allocator (bpf_global_ma), which clears nothing, so that an object holds what another namespace's
// program freed. Neither are bpf_strlen and its like, which read at any address, bpf_dynptr_from_file,
// which sleeps, or bpf_local_irq_save and bpf_preempt_disable: a program that then loops takes its CPU
// from all.
var kfuncs = []Row{
	{
		"bpf_dynptr_from_skb bpf_dynptr_from_xdp bpf_dynptr_slice bpf_dynptr_slice_rdwr bpf_dynptr_adjust bpf_dynptr_clone bpf_dynptr_copy bpf_dynptr_memset " +
			"bpf_dynptr_is_null bpf_dynptr_is_rdonly bpf_dynptr_size",
		"bytes of the packet or the program's memory", "the same", "the packet, the program", Everywhere, "", "kernel/bpf/helpers.c: bounds of the dynptr",
	},
	{
		"bpf_iter_num_new bpf_iter_num_next bpf_iter_num_destroy bpf_rcu_read_lock bpf_rcu_read_unlock",
		"numbers", "", "the program", Everywhere, "", "kernel/bpf/bpf_iter.c: bpf_iter_num_new",
	},
	{
		"bpf_list_push_front_impl bpf_list_push_back_impl bpf_list_push_front bpf_list_push_back bpf_list_pop_front bpf_list_pop_back bpf_list_front bpf_list_back " +
			"bpf_rbtree_add_impl bpf_rbtree_add bpf_rbtree_first bpf_rbtree_remove bpf_rbtree_root bpf_rbtree_left bpf_rbtree_right bpf_obj_drop_impl bpf_obj_drop " +
			"bpf_percpu_obj_drop_impl bpf_percpu_obj_drop bpf_refcount_acquire_impl bpf_refcount_acquire",
		"objects of the application", "lists and trees in its maps", "the application", Everywhere, "",
		"kernel/bpf/helpers.c: bpf_obj_new alone makes them, and is denied",
	},
	{
		"bpf_xdp_metadata_rx_timestamp bpf_xdp_metadata_rx_hash bpf_xdp_metadata_rx_vlan_tag",
		"what the device says of the packet", "", "the packet", Everywhere, "", "net/core/xdp.c: of ctx alone",
	},
	{
		"bpf_session_is_return bpf_session_cookie",
		"what the program noted at the beginning of a function", "", "the program", Everywhere, "", "kernel/trace/bpf_trace.c",
	},
	{
		"bpf_arena_alloc_pages bpf_arena_free_pages bpf_arena_reserve_pages",
		"pages of a map, which the kernel clears", "the same map", "the application", Everywhere, "", "arena_alloc_pages, kernel/bpf/arena.c: __GFP_ZERO",
	},
}
