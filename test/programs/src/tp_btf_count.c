// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts system calls, through the raw tracepoint with BTF.
#include "process.h"

SEC("tp_btf/sys_enter")
int tp_btf_count(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
