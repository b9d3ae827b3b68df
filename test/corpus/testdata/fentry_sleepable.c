// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A sleepable program on a function, for kernels built with error injection.
#include "program.h"

SEC("fentry.s/__x64_sys_getpgid")
int BPF_PROG(may_sleep, struct pt_regs *regs)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
