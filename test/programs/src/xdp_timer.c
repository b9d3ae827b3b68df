// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Starts a timer whose callback counts.
#include "counter.h"

#define CLOCK_MONOTONIC 1

struct clock {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct clock);
} clocks SEC(".maps");

static int tick(void *map, __u32 *key, struct clock *clock)
{
	count();
	return 0;
}

SEC("xdp")
int xdp_timer(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct clock *clock = bpf_map_lookup_elem(&clocks, &key);

	if (!clock)
		return XDP_PASS;
	bpf_timer_init(&clock->timer, &clocks, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&clock->timer, tick);
	bpf_timer_start(&clock->timer, 1000, 0);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
