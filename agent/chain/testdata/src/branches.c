// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Makes the verifier walk several hundred thousand instructions: each alone
// fits into its limit, three of them do not.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

volatile __u32 turns;

SEC("xdp")
int branches(struct xdp_md *ctx)
{
	__u32 sum = 0;

	for (int i = 0; i < 40000; i++) {
		sum += turns;
		if (sum > 1000000)
			break;
	}
	turns = sum;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
