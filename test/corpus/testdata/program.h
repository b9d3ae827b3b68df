/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What every program of this folder includes, as those of users do. */
#pragma once

#define __TARGET_ARCH_x86
/* Of vmlinux.h, which tools generate, they need no more than the registers. */
#define __VMLINUX_H__
#include <linux/bpf.h>
#include <stdbool.h>

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
} __attribute__((preserve_access_index));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

__u64 ran;
