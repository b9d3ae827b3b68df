// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts packets: the first version of a program that is later updated.
#include "counter.h"

/* Counts one packet of so many; 1 counts all. */
const volatile __u32 sampling = 1;

/* Every packet, counted or not. */
__u64 seen;

SEC("xdp")
int count_packets(struct xdp_md *ctx)
{
	__u64 n = __sync_fetch_and_add(&seen, 1);

	if (sampling > 1 && n % sampling)
		return XDP_PASS;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
