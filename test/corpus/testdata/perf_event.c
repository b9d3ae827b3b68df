// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A program of a counter.
#include "program.h"

struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};

SEC("perf_event")
int samples(struct bpf_perf_event_data *ctx)
{
	ran += !!ctx->sample_period;
	return 0;
}

char _license[] SEC("license") = "GPL";
