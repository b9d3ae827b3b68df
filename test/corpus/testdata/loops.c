// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Callbacks: over a map, and counted.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

static long each(void *map, __u32 *key, __u64 *value, void *ctx)
{
	*value += 1;
	return 0;
}

static long again(__u32 index, void *ctx)
{
	ran += index & 1;
	return 0;
}

SEC("raw_tp/sys_enter")
int repeats(void *ctx)
{
	bpf_for_each_map_elem(&numbers, each, 0, 0);
	bpf_loop(10, again, 0, 0);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
