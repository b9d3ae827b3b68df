// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Uses all of the 512 bytes of stack, of which a chain needs some.
#include "../../../../test/fixture/programs/src/counter.h"

__u64 sum;

SEC("xdp")
int stack512(struct xdp_md *ctx)
{
	volatile __u64 words[62];
	__u64 total = 0;

	for (int i = 0; i < 62; i++)
		words[i] = i;
	for (int i = 0; i < 62; i++)
		total += words[i];
	sum = total;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
