// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Could make a kernel function return an error: the baseline policy refuses
// it. The helper is called by a subprogram, where a shallow look misses it.
#include "process.h"

struct pt_regs;

static __noinline int refuse(struct pt_regs *ctx)
{
	return bpf_override_return(ctx, -1);
}

SEC("kprobe/should_failslab")
int kprobe_override(struct pt_regs *ctx)
{
	if (only_pid && count_process())
		refuse(ctx);
	return 0;
}

char _license[] SEC("license") = "GPL";
