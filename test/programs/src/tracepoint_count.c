// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts calls of getpgid, through the tracepoint of the system call.
#include "process.h"

SEC("tracepoint/syscalls/sys_enter_getpgid")
int tracepoint_count(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
