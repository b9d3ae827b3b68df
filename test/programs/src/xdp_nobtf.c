// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Carries no type information: its map is declared the old way, and the
// compile command strips the BTF.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct map_definition {
	__u32 type;
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
	__u32 map_flags;
};

struct map_definition counts SEC("maps") = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u64),
	.max_entries = 1,
};

__u64 seen;

SEC("xdp")
int xdp_nobtf(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	seen += 1;
	if (value)
		*value += 1;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
