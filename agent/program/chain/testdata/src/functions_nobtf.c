// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls a function of its own, without type information: the compile command
// strips it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __noinline __u32 random_bit(__u32 n)
{
	return (bpf_get_prandom_u32() ^ n) & 1;
}

SEC("xdp")
int functions_nobtf(struct xdp_md *ctx)
{
	return random_bit(ctx->ingress_ifindex) < 2 ? XDP_PASS : XDP_ABORTED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
