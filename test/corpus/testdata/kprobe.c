// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// BPF_KPROBE and BPF_KRETPROBE on functions and on an offset.
#include "program.h"

SEC("kprobe/security_task_getpgid")
int BPF_KPROBE(entry, void *task)
{
	ran += !!task;
	return 0;
}

SEC("kretprobe/security_task_getpgid")
int BPF_KRETPROBE(leave, int ret)
{
	ran += ret == 0;
	return 0;
}

SEC("kprobe/security_task_getpgid+0x0")
int at_offset(struct pt_regs *ctx)
{
	ran += !!bpf_get_func_ip(ctx);
	return 0;
}

char _license[] SEC("license") = "GPL";
