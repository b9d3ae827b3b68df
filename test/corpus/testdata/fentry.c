// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Functions traced by BTF: entry, exit, and a result that is changed.
#include "program.h"

struct task_struct;

SEC("fentry/security_task_getpgid")
int BPF_PROG(entry, struct task_struct *task)
{
	ran++;
	return 0;
}

SEC("fexit/security_task_getpgid")
int BPF_PROG(leave, struct task_struct *task, int ret)
{
	ran += ret == 0;
	return 0;
}

SEC("fmod_ret/security_task_getpgid")
int BPF_PROG(decides, struct task_struct *task, int ret)
{
	ran++;
	return ret;
}

char _license[] SEC("license") = "GPL";
