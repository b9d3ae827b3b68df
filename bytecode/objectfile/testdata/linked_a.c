// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// With linked_b.c by bpftool gen object linked.o linked_a.o linked_b.o: both have a static function helper.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __attribute__((noinline)) int helper(int x)
{
	return bpf_get_prandom_u32() + x + 101;
}

SEC("tracepoint/syscalls/sys_enter_getpgid")
int prog_a(void *ctx)
{
	return helper(1) & 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
