// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Asks for its map to be pinned by name.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} pinned SEC(".maps");

SEC("xdp")
int xdp_pinned(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&pinned, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
