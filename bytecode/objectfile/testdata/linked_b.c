// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// See linked_a.c.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __attribute__((noinline)) int helper(int x)
{
	return bpf_get_prandom_u32() + x + 102;
}

SEC("tracepoint/syscalls/sys_enter_getpgid")
int prog_b(void *ctx)
{
	return helper(1) & 1;
}

