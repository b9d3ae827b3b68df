// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One program for every hook the agent attaches. Setting version makes another
// revision of the same object.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 version = 1;

/* So that versions differ in their code, too. */
__u32 last;

#define PROGRAM(NAME, SECTION, VERDICT) \
	SEC(SECTION)                    \
	int NAME(void *ctx)             \
	{                               \
		last = version;         \
		return VERDICT;         \
	}

PROGRAM(on_xdp, "xdp", XDP_PASS)
/* What programs for packets that come in decide: the next program is asked. */
const volatile __s32 tc_verdict = -1;

PROGRAM(on_tcx_ingress, "tcx/ingress", tc_verdict)
PROGRAM(on_tcx_egress, "tcx/egress", -1)
PROGRAM(on_tc_ingress, "tc", tc_verdict)
PROGRAM(on_tc_egress, "tc", -1)
PROGRAM(on_netkit_primary, "netkit/primary", -1)
PROGRAM(on_netkit_peer, "netkit/peer", -1)
PROGRAM(on_tracepoint, "tracepoint/syscalls/sys_enter_getpgid", 0)
PROGRAM(on_raw_tp, "raw_tp/sys_enter", 0)
/* The process for which on_raw_tp_w changes the result of a program's test run. */
const volatile __u32 changes_for;

SEC("raw_tp.w/bpf_test_finish")
int on_raw_tp_w(struct bpf_raw_tracepoint_args *ctx)
{
	int *result = (int *)ctx->args[0];

	last = version;
	if (changes_for && bpf_get_current_pid_tgid() >> 32 == changes_for)
		*result = -61; /* ENODATA */
	return 0;
}

PROGRAM(on_tp_btf, "tp_btf/sys_enter", 0)
PROGRAM(on_kprobe, "kprobe", 0)
PROGRAM(on_kretprobe, "kretprobe", 0)
PROGRAM(on_ksyscall, "ksyscall", 0)
PROGRAM(on_kretsyscall, "kretsyscall", 0)
PROGRAM(on_kprobe_multi, "kprobe.multi", 0)
PROGRAM(on_kretprobe_multi, "kretprobe.multi", 0)
PROGRAM(on_kprobe_session, "kprobe.session", 0)
PROGRAM(on_fentry, "fentry/security_task_getpgid", 0)
PROGRAM(on_fexit, "fexit/security_task_getpgid", 0)
PROGRAM(on_fmod_ret, "fmod_ret/security_task_getpgid", 0)
PROGRAM(on_lsm, "lsm/task_getpgid", 0)
PROGRAM(on_lsm_cgroup, "lsm_cgroup/socket_create", 1)
PROGRAM(on_uprobe, "uprobe", 0)
PROGRAM(on_uretprobe, "uretprobe", 0)
PROGRAM(on_uprobe_multi, "uprobe.multi", 0)
PROGRAM(on_uretprobe_multi, "uretprobe.multi", 0)
PROGRAM(on_usdt, "usdt", 0)
PROGRAM(on_perf_event, "perf_event", 0)
PROGRAM(on_iter, "iter/task", 0)
/* What it returns: a negative errno where it failed. */
const volatile __s32 ran_with = 0;

PROGRAM(on_syscall, "syscall", ran_with)

/* Reads an argument. */
SEC("syscall")
int on_syscall_with(__u64 *argument)
{
	last = version;
	return *argument != 0;
}
/* Functions that the verifier looks at apart unless they are static, and that loop together. */
__attribute__((noinline)) int inner(__u32 n)
{
	for (int i = 0; i < 30; i++)
		n += bpf_get_prandom_u32();
	return n;
}

__attribute__((noinline)) int outer(__u32 n)
{
	for (int i = 0; i < 30; i++)
		n += inner(n);
	return n;
}

SEC("syscall")
int on_syscall_nested(void *ctx)
{
	return outer(1) & 1;
}

PROGRAM(on_sk_lookup, "sk_lookup", SK_PASS)
/* NF_ACCEPT, or NF_DROP where it is set to 0. */
const volatile __u32 netfilter_verdict = 1;

PROGRAM(on_netfilter, "netfilter", netfilter_verdict ? 1 : 0)
PROGRAM(on_flow_dissector, "flow_dissector", BPF_FLOW_DISSECTOR_CONTINUE)
/* Others for the same place. */
PROGRAM(other_netfilter, "netfilter", netfilter_verdict ? 1 : 0)
PROGRAM(other_flow_dissector, "flow_dissector", BPF_FLOW_DISSECTOR_CONTINUE)
PROGRAM(on_cgroup_skb_ingress, "cgroup_skb/ingress", 1)
PROGRAM(on_cgroup_skb_egress, "cgroup_skb/egress", 1)
PROGRAM(on_cgroup_sock_create, "cgroup/sock_create", 1)
PROGRAM(on_cgroup_sock_release, "cgroup/sock_release", 1)
PROGRAM(on_cgroup_post_bind4, "cgroup/post_bind4", 1)
PROGRAM(on_cgroup_post_bind6, "cgroup/post_bind6", 1)
PROGRAM(on_cgroup_bind4, "cgroup/bind4", 1)
PROGRAM(on_cgroup_bind6, "cgroup/bind6", 1)
PROGRAM(on_cgroup_connect4, "cgroup/connect4", 1)
PROGRAM(on_cgroup_connect6, "cgroup/connect6", 1)
PROGRAM(on_cgroup_sendmsg4, "cgroup/sendmsg4", 1)
PROGRAM(on_cgroup_sendmsg6, "cgroup/sendmsg6", 1)
PROGRAM(on_cgroup_recvmsg4, "cgroup/recvmsg4", 1)
PROGRAM(on_cgroup_recvmsg6, "cgroup/recvmsg6", 1)
PROGRAM(on_cgroup_getpeername4, "cgroup/getpeername4", 1)
PROGRAM(on_cgroup_getpeername6, "cgroup/getpeername6", 1)
PROGRAM(on_cgroup_getsockname4, "cgroup/getsockname4", 1)
PROGRAM(on_cgroup_getsockname6, "cgroup/getsockname6", 1)
PROGRAM(on_cgroup_connect_unix, "cgroup/connect_unix", 1)
PROGRAM(on_cgroup_sendmsg_unix, "cgroup/sendmsg_unix", 1)
PROGRAM(on_cgroup_recvmsg_unix, "cgroup/recvmsg_unix", 1)
PROGRAM(on_cgroup_getpeername_unix, "cgroup/getpeername_unix", 1)
PROGRAM(on_cgroup_getsockname_unix, "cgroup/getsockname_unix", 1)
PROGRAM(on_cgroup_sysctl, "cgroup/sysctl", 1)
PROGRAM(on_cgroup_getsockopt, "cgroup/getsockopt", 1)
PROGRAM(on_cgroup_setsockopt, "cgroup/setsockopt", 1)
PROGRAM(on_cgroup_dev, "cgroup/dev", 1)
PROGRAM(on_sockops, "sockops", 1)

char _license[] SEC("license") = "Dual BSD/GPL";
