// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts frames of the EtherType for local experiments (IEEE 802, 0x88b5), which
// the kernel does not send by itself, and passes all.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("xdp")
int own_frames(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (value && eth->h_proto == bpf_htons(0x88b5))
		*value += 1;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
