// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts system calls, through the raw tracepoint.
#include "process.h"

SEC("raw_tp/sys_enter")
int raw_tp_count(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
