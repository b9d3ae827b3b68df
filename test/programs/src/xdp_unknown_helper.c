// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls a helper id that no kernel has.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static long (*const unknown)(void) = (void *)9999;

SEC("xdp")
int xdp_unknown_helper(struct xdp_md *ctx)
{
	return unknown() ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
