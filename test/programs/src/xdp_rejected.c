// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reads the packet without looking where it ends: the verifier refuses it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int xdp_rejected(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;

	return data[64] ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
