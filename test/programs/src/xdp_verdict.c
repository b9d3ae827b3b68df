// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts a packet and returns the verdict it is told to: Pass, Drop, Tx,
// Aborted, Redirect or none the kernel knows.
#include "counter.h"

/* A value of enum xdp_action. */
const volatile __u32 verdict = XDP_PASS;

SEC("xdp")
int xdp_verdict(struct xdp_md *ctx)
{
	count();
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
