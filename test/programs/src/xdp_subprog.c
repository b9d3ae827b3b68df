// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls a static and a global function, which call helpers of their own.
#include "counter.h"

static __noinline __u64 now(void)
{
	return bpf_ktime_get_ns();
}

__noinline int even(__u32 n)
{
	return ((n ^ (__u32)bpf_get_smp_processor_id()) & 1) == 0;
}

__u64 last;

SEC("xdp")
int xdp_subprog(struct xdp_md *ctx)
{
	last = now();
	if (even(ctx->ingress_ifindex) >= 0)
		count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
