// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A map of maps whose inner map has a name for its type.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} inner;

inner first SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, inner);
} outer SEC(".maps") = {.values = {(void *)&first}};

SEC("tracepoint/syscalls/sys_enter_getpgid")
int looks(void *ctx)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&outer, &key) ? 0 : 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
