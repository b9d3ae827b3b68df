// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls a helper the kernel gives to the GPL only, under the GPL.
#include "counter.h"

SEC("xdp")
int xdp_gpl(struct xdp_md *ctx)
{
	bpf_printk("seen");
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
