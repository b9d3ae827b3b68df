// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Tail calls through a prog array that the object itself fills.
#include "counter.h"

int xdp_tail(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} jumps SEC(".maps") = {
	.values = { [0] = &xdp_tail },
};

SEC("xdp")
int xdp_tail(struct xdp_md *ctx)
{
	count();
	return XDP_PASS;
}

SEC("xdp")
int xdp_tailcall(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &jumps, 0);
	return XDP_ABORTED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
