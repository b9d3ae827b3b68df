// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Maps of each CPU, and those that forget.
#include "program.h"

#define MAP(NAME, TYPE)                        \
	struct {                               \
		__uint(type, TYPE);            \
		__uint(max_entries, 64);       \
		__type(key, __u32);            \
		__type(value, __u64);          \
	} NAME SEC(".maps")

MAP(array, BPF_MAP_TYPE_PERCPU_ARRAY);
MAP(hash, BPF_MAP_TYPE_PERCPU_HASH);
MAP(lru, BPF_MAP_TYPE_LRU_PERCPU_HASH);
MAP(lru_shared, BPF_MAP_TYPE_LRU_HASH);

SEC("raw_tp/sys_enter")
int counts(void *ctx)
{
	__u32 key = 1;
	__u64 value = 1, *found = bpf_map_lookup_elem(&array, &key);

	if (found)
		*found += 1;
	bpf_map_update_elem(&hash, &key, &value, BPF_ANY);
	bpf_map_update_elem(&lru, &key, &value, BPF_ANY);
	bpf_map_update_elem(&lru_shared, &key, &value, BPF_ANY);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
