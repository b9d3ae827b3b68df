// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Makes the verifier walk several hundred thousand instructions: each alone
// fits into its limit, three of them do not.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

volatile __u32 turns;

SEC("xdp")
int branches(struct xdp_md *ctx)
{
	for (int i = 0; i < 2000; i++) {
		if (turns == (__u32)i)
			break;
#pragma unroll
		for (int j = 0; j < 50; j++)
			turns += i;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
