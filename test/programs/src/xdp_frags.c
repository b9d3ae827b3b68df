// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Declares that it can see packets in several buffers.
#include "counter.h"

SEC("xdp.frags")
int xdp_frags(struct xdp_md *ctx)
{
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
