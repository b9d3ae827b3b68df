// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts in a map whose value holds a spin lock.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct guarded {
	struct bpf_spin_lock lock;
	__u64 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guarded);
} guarded_counts SEC(".maps");

SEC("xdp")
int xdp_lock(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct guarded *value = bpf_map_lookup_elem(&guarded_counts, &key);

	if (!value)
		return XDP_PASS;
	bpf_spin_lock(&value->lock);
	value->packets += 1;
	bpf_spin_unlock(&value->lock);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
