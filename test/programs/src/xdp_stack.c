// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Uses 480 bytes of stack.
#include "counter.h"

__u64 sum;

SEC("xdp")
int xdp_stack(struct xdp_md *ctx)
{
	volatile __u64 words[58];
	__u64 total = 0;

	for (int i = 0; i < 58; i++)
		words[i] = i;
	for (int i = 0; i < 58; i++)
		total += words[i];
	sum = total;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
