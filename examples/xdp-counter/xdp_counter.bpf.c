// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts the packets an interface receives and lets all of them pass.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Counts one packet of so many; 1 counts all. A definition sets it. */
const volatile __u32 sampling = 1;

/* Every packet, counted or not. */
__u64 seen;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

SEC("xdp")
int count_packets(struct xdp_md *ctx)
{
	__u64 n = __sync_fetch_and_add(&seen, 1);
	__u32 key = 0;
	__u64 *value;

	if (sampling > 1 && n % sampling)
		return XDP_PASS;
	value = bpf_map_lookup_elem(&counts, &key);
	if (value)
		*value += 1;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
