// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sends every packet out of another interface.
#include "counter.h"

/* The index of the interface to send to. */
const volatile __u32 ifindex = 0;

SEC("xdp")
int xdp_redirect(struct xdp_md *ctx)
{
	count();
	return bpf_redirect(ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
