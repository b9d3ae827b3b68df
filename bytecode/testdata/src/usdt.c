// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The maps of libbpf's usdt.bpf.h have weak symbols; a program of another kind
// beside the one with arguments uses none of them.
#define __TARGET_ARCH_x86
#define __VMLINUX_H__
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
// bpf2go takes no weak maps: tests make them weak again.
#undef __weak
#define __weak
struct pt_regs {
	unsigned long ip;
};
#include <bpf/usdt.bpf.h>

SEC("usdt")
int arguments(struct pt_regs *ctx)
{
	return bpf_usdt_arg_cnt(ctx);
}

SEC("xdp")
int beside(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
