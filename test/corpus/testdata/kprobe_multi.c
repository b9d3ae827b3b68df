// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One link for many functions of the kernel.
#include "program.h"

SEC("kprobe.multi/security_task_getp*")
int entries(struct pt_regs *ctx)
{
	ran += !!bpf_get_func_ip(ctx);
	return 0;
}

SEC("kretprobe.multi/security_task_getp*")
int returns(struct pt_regs *ctx)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
