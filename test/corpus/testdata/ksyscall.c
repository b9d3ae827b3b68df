// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// System calls by their names, resolved per architecture, with the kconfig of BPF_KSYSCALL.
#include "program.h"

int last_pid;

SEC("ksyscall/getpgid")
int BPF_KSYSCALL(entry, int pid)
{
	last_pid = pid;
	ran++;
	return 0;
}

SEC("kretsyscall/getpgid")
int BPF_KRETPROBE(leave, int ret)
{
	ran += ret > 0;
	return 0;
}

char _license[] SEC("license") = "GPL";
