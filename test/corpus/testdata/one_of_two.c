// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// An fentry and a kprobe for the same place, as tools of libbpf have them: the kernel that lacks one has the other.
#include "program.h"

SEC("fentry/security_task_getpgid")
int BPF_PROG(by_fentry)
{
	ran++;
	return 0;
}

SEC("kprobe/security_task_getpgid")
int BPF_KPROBE(by_kprobe)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
