// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has maps of about 4 GiB and, per CPU, 64 MiB.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct row {
	__u8 bytes[4096];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 20);
	__type(key, __u32);
	__type(value, struct row);
} big SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, __u8[1024]);
} big_per_cpu SEC(".maps");

SEC("xdp")
int xdp_big_map(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 wide = 0;

	if (bpf_map_lookup_elem(&big, &key) && bpf_map_lookup_elem(&big_per_cpu, &wide))
		return XDP_DROP;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
