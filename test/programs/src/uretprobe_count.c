// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts returns from a function of a binary that the definition names.
#include "process.h"

SEC("uretprobe")
int uretprobe_count(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
