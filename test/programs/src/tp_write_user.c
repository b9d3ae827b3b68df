// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Could write into a process's memory: the baseline policy refuses it.
#include "process.h"

/* Where to write; nothing is written at 0. */
const volatile __u64 address = 0;

SEC("tracepoint/syscalls/sys_enter_getpgid")
int tp_write_user(void *ctx)
{
	__u64 zero = 0;

	if (address && count_process())
		bpf_probe_write_user((void *)address, &zero, sizeof(zero));
	return 0;
}

char _license[] SEC("license") = "GPL";
