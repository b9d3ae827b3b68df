package bytecode

import (
	"slices"
	"strings"
)

// kfuncKernel is the first mainline kernel with a kfunc, or "" where none is
// noted: kfuncs come and go without a promise, so the list is never whole.
// Source: ebpf-docs, data/feature-versions.yaml (BSD-2), save
// bpf_dynptr_is_rdonly, which came with the other dynptr kfuncs of 6.5, and
// those after 6.10, which are from the kernel's history.
func kfuncKernel(name string) string {
	for _, era := range kfuncEras {
		if strings.Contains(era.kfuncs, " "+name+" ") {
			return era.kernel
		}
	}
	return ""
}

// kfuncEras are the kfuncs that came with each kernel, each between spaces.
var kfuncEras = [...]struct{ kernel, kfuncs string }{
	{"5.13", " bbr_cwnd_event bbr_init bbr_main bbr_min_tso_segs bbr_set_state bbr_sndbuf_expand " +
		"bbr_ssthresh bbr_undo_cwnd cubictcp_acked cubictcp_cong_avoid cubictcp_cwnd_event " +
		"cubictcp_init cubictcp_recalc_ssthresh cubictcp_state dctcp_cwnd_event dctcp_cwnd_undo " +
		"dctcp_init dctcp_ssthresh dctcp_state dctcp_update_alpha tcp_cong_avoid_ai " +
		"tcp_reno_cong_avoid tcp_reno_ssthresh tcp_reno_undo_cwnd tcp_slow_start "},
	{"5.18", " bpf_ct_release bpf_skb_ct_lookup bpf_xdp_ct_lookup "},
	{"6.0", " bpf_ct_change_status bpf_ct_change_timeout bpf_ct_insert_entry bpf_ct_set_status " +
		"bpf_ct_set_timeout bpf_skb_ct_alloc bpf_xdp_ct_alloc "},
	{"6.1", " bpf_ct_set_nat_info bpf_key_put bpf_lookup_system_key bpf_lookup_user_key " +
		"bpf_verify_pkcs7_signature cgroup_rstat_flush cgroup_rstat_updated crash_kexec "},
	{"6.2", " bpf_cast_to_kern_ctx bpf_cgroup_acquire bpf_cgroup_ancestor bpf_cgroup_release " +
		"bpf_list_pop_back bpf_list_pop_front bpf_obj_drop_impl bpf_obj_new_impl bpf_rcu_read_lock " +
		"bpf_rcu_read_unlock bpf_rdonly_cast bpf_skb_get_xfrm_info bpf_skb_set_xfrm_info " +
		"bpf_task_acquire bpf_task_from_pid bpf_task_release "},
	{"6.3", " bpf_cpumask_acquire bpf_cpumask_and bpf_cpumask_clear bpf_cpumask_clear_cpu " +
		"bpf_cpumask_copy bpf_cpumask_create bpf_cpumask_empty bpf_cpumask_equal bpf_cpumask_first " +
		"bpf_cpumask_first_zero bpf_cpumask_full bpf_cpumask_intersects bpf_cpumask_or " +
		"bpf_cpumask_release bpf_cpumask_set_cpu bpf_cpumask_setall bpf_cpumask_subset " +
		"bpf_cpumask_test_and_clear_cpu bpf_cpumask_test_and_set_cpu bpf_cpumask_test_cpu " +
		"bpf_cpumask_xor bpf_rbtree_first bpf_rbtree_remove bpf_xdp_metadata_rx_hash " +
		"bpf_xdp_metadata_rx_timestamp hid_bpf_allocate_context hid_bpf_attach_prog " +
		"hid_bpf_get_data hid_bpf_hw_request hid_bpf_release_context "},
	{"6.4", " bpf_cgroup_from_id bpf_dynptr_from_skb bpf_dynptr_from_xdp bpf_dynptr_slice " +
		"bpf_dynptr_slice_rdwr bpf_iter_num_destroy bpf_iter_num_new bpf_iter_num_next " +
		"bpf_list_push_back_impl bpf_list_push_front_impl bpf_rbtree_add_impl " +
		"bpf_refcount_acquire_impl bpf_skb_get_fou_encap bpf_skb_set_fou_encap "},
	{"6.5", " bpf_cpumask_any_and_distribute bpf_cpumask_any_distribute bpf_cpumask_first_and " +
		"bpf_dynptr_adjust bpf_dynptr_clone bpf_dynptr_is_null bpf_dynptr_is_rdonly bpf_dynptr_size " +
		"bpf_sock_destroy bpf_task_under_cgroup "},
	{"6.6", " bpf_map_sum_elem_count "},
	{"6.7", " bpf_iter_css_destroy bpf_iter_css_new bpf_iter_css_next bpf_iter_css_task_destroy " +
		"bpf_iter_css_task_new bpf_iter_css_task_next bpf_iter_task_destroy bpf_iter_task_new " +
		"bpf_iter_task_next bpf_iter_task_vma_destroy bpf_iter_task_vma_new bpf_iter_task_vma_next " +
		"bpf_percpu_obj_drop_impl bpf_percpu_obj_new_impl bpf_sock_addr_set_sun_path bpf_throw "},
	{"6.8", " bpf_cpumask_weight bpf_get_file_xattr bpf_get_fsverity_digest bpf_task_get_cgroup1 " +
		"bpf_xdp_get_xfrm_state bpf_xdp_metadata_rx_vlan_tag bpf_xdp_xfrm_state_release "},
	{"6.9", " bpf_arena_alloc_pages bpf_arena_free_pages "},
	{"6.10", " bpf_crypto_ctx_acquire bpf_crypto_ctx_create bpf_crypto_ctx_release bpf_crypto_decrypt " +
		"bpf_crypto_encrypt bpf_preempt_disable bpf_preempt_enable bpf_session_cookie " +
		"bpf_session_is_return bpf_wq_init bpf_wq_set_callback_impl bpf_wq_start "},
	{"6.12", " bpf_copy_from_user_str "},
	{"6.13", " bpf_send_signal_task "},
	{"6.14", " bpf_remove_dentry_xattr bpf_set_dentry_xattr "},
	{"6.15", " bpf_copy_from_user_task_str "},
	{"6.16", " bpf_copy_from_user_dynptr bpf_copy_from_user_str_dynptr " +
		"bpf_copy_from_user_task_dynptr bpf_copy_from_user_task_str_dynptr " +
		"bpf_probe_read_kernel_dynptr bpf_probe_read_kernel_str_dynptr " +
		"bpf_probe_read_user_dynptr bpf_probe_read_user_str_dynptr "},
}

// Kfunc is a kernel function that programs call by name, with the harm it can
// do.
type Kfunc struct {
	// Name is the kernel's.
	Name string `json:"name"`
	// MinKernel is the first mainline kernel with the kfunc, as major.minor.
	MinKernel string `json:"minKernel"`
	// Risk is the class of harm.
	Risk Risk `json:"risk"`
}

// RiskyKfuncs returns the kfuncs that do what the risky helpers do, sorted by
// name. The rest of the kfuncs are not listed and not thereby harmless: modules
// bring their own. A policy that wants to be sure lists those it allows.
func RiskyKfuncs() []Kfunc {
	var all []Kfunc
	for risk, names := range map[Risk][]string{
		SendsSignals: {"bpf_send_signal_task"},
		StopsKernel:  {"crash_kexec"},
		WritesFiles:  {"bpf_remove_dentry_xattr", "bpf_set_dentry_xattr"},
		ReadsKernelMemory: {"bpf_probe_read_kernel_dynptr", "bpf_probe_read_kernel_str_dynptr",
			"bpf_rdonly_cast"},
		ReadsUserMemory: {"bpf_copy_from_user_dynptr", "bpf_copy_from_user_str",
			"bpf_copy_from_user_str_dynptr", "bpf_copy_from_user_task_dynptr",
			"bpf_copy_from_user_task_str", "bpf_copy_from_user_task_str_dynptr",
			"bpf_probe_read_user_dynptr", "bpf_probe_read_user_str_dynptr"},
	} {
		for _, name := range names {
			all = append(all, Kfunc{name, kfuncKernel(name), risk})
		}
	}
	slices.SortFunc(all, func(a, b Kfunc) int { return strings.Compare(a.Name, b.Name) })
	return all
}
