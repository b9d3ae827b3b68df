// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A licence that only looks compatible: the kernel reads up to the first NUL.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("perf_event")
int stacks(struct bpf_perf_event_data *ctx)
{
	bpf_get_stackid(ctx, 0, 0);
	return 0;
}

SEC("raw_tp/sched_switch")
int stacks_too(void *ctx)
{
	bpf_get_stackid(ctx, 0, 0);
	return bpf_override_return(ctx, 1);
}

char _license[] SEC("license") = "Proprietary\0GPL";
