// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Names no tracepoint in its section: the definition has to.
#include "process.h"

SEC("tracepoint")
int tracepoint_bare(void *ctx)
{
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
