// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Hands callbacks to bpf_loop and bpf_for_each_map_elem. Only the callbacks
// call bpf_get_prandom_u32 and bpf_ktime_get_ns.
#include "counter.h"

struct bpf_map;

__u64 sum;

static long each_turn(__u32 index, void *data)
{
	*(__u64 *)data += bpf_get_prandom_u32() & 1;
	return 0;
}

static long each_value(struct bpf_map *map, const void *key, void *value, void *data)
{
	*(__u64 *)data += bpf_ktime_get_ns() & 1;
	return 0;
}

SEC("xdp")
int xdp_callback(struct xdp_md *ctx)
{
	__u64 local = 0;

	bpf_loop(4, each_turn, &local, 0);
	bpf_for_each_map_elem(&counts, each_value, &local, 0);
	sum += local;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
