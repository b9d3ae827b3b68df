// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// xdp_count's third version: the map's value has the size it had and another
// type, so its contents must not be carried over.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct totals {
	__u32 packets;
	__u32 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} counts SEC(".maps");

SEC("xdp")
int count_packets(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct totals *value = bpf_map_lookup_elem(&counts, &key);

	if (value) {
		value->packets += 1;
		value->bytes += ctx->data_end - ctx->data;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
