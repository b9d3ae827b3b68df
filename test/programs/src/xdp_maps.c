// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Uses five maps, so that a chain of thirteen passes the kernel's 64.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAP(NAME)                                      \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);      \
		__uint(max_entries, 1);                \
		__type(key, __u32);                    \
		__type(value, __u64);                  \
	} NAME SEC(".maps")

MAP(one);
MAP(two);
MAP(three);
MAP(four);
MAP(five);

static __always_inline void touch(void *map)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(map, &key);

	if (value)
		*value += 1;
}

SEC("xdp")
int xdp_maps(struct xdp_md *ctx)
{
	touch(&one);
	touch(&two);
	touch(&three);
	touch(&four);
	touch(&five);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
