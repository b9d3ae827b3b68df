// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Leaves the sizes of three maps to its loader, and one that the kernel's CPUs
// give.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
} no_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, sizeof(__u32));
} no_sizes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 8);
} no_values SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} per_cpu SEC(".maps");

SEC("xdp")
int xdp_open_maps(struct xdp_md *ctx)
{
	__u32 key = 0;

	bpf_map_lookup_elem(&no_entries, &key);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
