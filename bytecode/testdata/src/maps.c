// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Maps whose cost depends on CPUs, flags, pages or other maps, and two that no
// program uses.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAP(map, kind, entries, flags) \
	struct { \
		__uint(type, kind); \
		__uint(max_entries, entries); \
		__uint(map_flags, flags); \
		__type(key, __u32); \
		__type(value, __u64); \
	} map SEC(".maps")

MAP(per_cpu, BPF_MAP_TYPE_PERCPU_ARRAY, 1024, 0);
MAP(mapped, BPF_MAP_TYPE_ARRAY, 1, BPF_F_MMAPABLE);
MAP(recent, BPF_MAP_TYPE_LRU_HASH, 1000, BPF_F_NO_COMMON_LRU);
MAP(sparse, BPF_MAP_TYPE_PERCPU_HASH, 100, BPF_F_NO_PREALLOC);
MAP(huge, BPF_MAP_TYPE_HASH, 0xffffffff, 0);

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 100);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, 8);
	__uint(value_size, 4);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 8);
		__type(key, __u32);
		__type(value, __u64);
	});
} outer SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf SEC(".maps");

struct {
	__uint(type, 77);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} unknown SEC(".maps");

SEC("cgroup_skb/ingress")
int uses_some(struct __sk_buff *skb)
{
	__u32 zero = 0;

	bpf_map_lookup_elem(&per_cpu, &zero);
	bpf_map_lookup_elem(&recent, &zero);
	bpf_perf_event_output(skb, &perf, 0, &zero, sizeof(zero));
	return 1;
}

char _license[] SEC("license") = "BSD";
