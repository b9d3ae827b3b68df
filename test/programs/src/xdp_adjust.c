// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Takes bytes off the front of the packet; the next member of a chain must see
// the new length.
#include "counter.h"

/* How many bytes to take off. */
const volatile __s32 cut = 4;

SEC("xdp")
int xdp_adjust(struct xdp_md *ctx)
{
	count();
	bpf_xdp_adjust_head(ctx, cut);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
