// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A timer.
#include "program.h"

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
	ran++;
	return 0;
}

SEC("tc")
int starts(struct __sk_buff *skb)
{
	__u32 key = 0;
	struct clock *clock = bpf_map_lookup_elem(&clocks, &key);

	if (clock) {
		bpf_timer_init(&clock->timer, &clocks, 1);
		bpf_timer_set_callback(&clock->timer, tick);
		bpf_timer_start(&clock->timer, 1000, 0);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
