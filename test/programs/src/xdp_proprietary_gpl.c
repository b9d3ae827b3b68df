// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls a helper the kernel gives to the GPL only, under another licence: the
// kernel refuses it alone and would not see it in a joined chain.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int xdp_proprietary_gpl(struct xdp_md *ctx)
{
	bpf_printk("seen");
	return XDP_PASS;
}

char _license[] SEC("license") = "Proprietary";
