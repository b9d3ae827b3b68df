// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sections that say more than a hook: sleepable, fragments, optional, a target,
// no hook at all, and code that no section of a program holds.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("uprobe.s//usr/bin/true:main")
int sleeps(void *ctx)
{
	return 0;
}

SEC("?xdp.frags")
int large_packets(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("tracepoint/syscalls/sys_enter_execve")
int aimed(void *ctx)
{
	return 0;
}

SEC("tc")
int nowhere(struct __sk_buff *skb)
{
	return 0;
}

SEC("my/own/section")
int unheard_of(void *ctx)
{
	return 0;
}

SEC("cgroup_skb/ingress")
int first_number(struct __sk_buff *skb)
{
	return 1;
}

int library(int n)
{
	return n + bpf_get_prandom_u32();
}

char _license[] SEC("license") = "GPL";
