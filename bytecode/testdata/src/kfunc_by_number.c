// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Code that calls a kfunc by its number in one kernel's BTF.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int calls_btf_id(struct xdp_md *ctx)
{
	asm volatile(".byte 0x85, 0x20, 0, 0, 0x39, 0x30, 0, 0");
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
