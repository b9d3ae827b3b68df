// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Cookies, arguments by type, and time.
#include "program.h"

__u64 cookie, when, number;

SEC("raw_tp/sys_enter")
int BPF_PROG(enters, struct pt_regs *regs, long id)
{
	when = bpf_ktime_get_boot_ns() + bpf_get_prandom_u32() + bpf_get_smp_processor_id();
	number = id;
	ran++;
	return 0;
}

SEC("tp/raw_syscalls/sys_exit")
int leaves(void *ctx)
{
	cookie = bpf_get_attach_cookie(ctx);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
