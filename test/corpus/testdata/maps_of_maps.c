// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Maps in a map, filled in by the object, and one that others fill.
#include "program.h"

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} one SEC(".maps"), two SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct inner);
} filled SEC(".maps") = {
	.values = { &one, &two },
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 16);
	__type(key, __u32);
	__array(values, struct inner);
} empty SEC(".maps");

SEC("raw_tp/sys_enter")
int looks_up(void *ctx)
{
	__u32 key = 0;
	void *map = bpf_map_lookup_elem(&filled, &key);
	__u64 *value;

	if (!map)
		return 0;
	value = bpf_map_lookup_elem(map, &key);
	if (value)
		*value += 1;
	bpf_map_lookup_elem(&empty, &key);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
