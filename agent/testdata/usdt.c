// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Keeps the arguments of the USDT probe that ran last.
#define __TARGET_ARCH_x86
#define __VMLINUX_H__
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
// bpf2go takes no weak symbols: tests make them weak again.
#undef __weak
#define __weak
struct pt_regs {
	unsigned long ip;
};
#include <bpf/usdt.bpf.h>

const volatile __u64 version = 1;

/* How often it ran, times the version, and what it read then. */
struct {
	__u64 runs;
	long arguments[BPF_USDT_MAX_ARG_CNT];
	long errors[BPF_USDT_MAX_ARG_CNT];
	__u64 count;
} seen;

#define READ(N)                                        \
	{                                              \
		long value;                            \
		seen.errors[N] = bpf_usdt_arg(ctx, N, &value); \
		seen.arguments[N] = value;             \
	}

SEC("usdt")
int on_probe(struct pt_regs *ctx)
{
	seen.count = bpf_usdt_arg_cnt(ctx);
	READ(0)
	READ(1)
	READ(2)
	READ(3)
	READ(4)
	READ(5)
	READ(6)
	__sync_fetch_and_add(&seen.runs, version);
	return 0;
}

char _license[] SEC("license") = "GPL";
