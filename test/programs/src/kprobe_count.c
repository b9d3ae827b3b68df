// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts calls of a kernel function; the agent does not attach kprobes yet.
#include "process.h"

SEC("kprobe/do_unlinkat")
int kprobe_count(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
