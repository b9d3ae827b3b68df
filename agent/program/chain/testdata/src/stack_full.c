// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Uses 504 of 512 bytes of stack, which leaves too few for a caller.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

__u64 sum;

SEC("xdp")
int stack_full(struct xdp_md *ctx)
{
	volatile __u64 words[63];
	__u64 total = 0;

	for (int i = 0; i < 63; i++)
		words[i] = i;
	for (int i = 0; i < 63; i++)
		total += words[i];
	sum = total;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
