// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Two programs of one object that use one map, a data section and a function
// together.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} total SEC(".maps");

__u64 order;

static __noinline void put(__u64 digit)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&total, &key);

	order = order * 10 + digit;
	if (value)
		*value += digit;
}

SEC("xdp")
int one(struct xdp_md *ctx)
{
	put(1);
	return XDP_PASS;
}

SEC("xdp")
int two(struct xdp_md *ctx)
{
	put(2);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
