// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// xdp_count's second version: the same maps, other code, and new variables
// before the old ones, so that "seen" has another offset.
#include "counter.h"

/* Bytes of every packet. */
__u64 bytes = 0;

/* Counts one packet of so many; 1 counts all. */
const volatile __u32 sampling = 1;

/* Shorter packets, in bytes, are not counted. */
const volatile __u32 min_length = 0;

/* Every packet, counted or not. */
__u64 seen = 0;

SEC("xdp")
int count_packets(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;
	__u64 n = __sync_fetch_and_add(&seen, 1);

	__sync_fetch_and_add(&bytes, length);
	if (length < min_length)
		return XDP_PASS;
	if (sampling > 1 && n % sampling)
		return XDP_PASS;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
