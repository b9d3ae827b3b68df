// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The smallest XDP program: no map, no helper.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int xdp_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
