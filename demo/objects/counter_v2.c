// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The next version of examples/xdp-counter: the same map of counts, and the
// bytes beside it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 sampling = 1;

/* Bytes of every packet: the variable that is new. */
__u64 bytes;
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

	__sync_fetch_and_add(&bytes, ctx->data_end - ctx->data);
	if (sampling > 1 && n % sampling)
		return XDP_PASS;
	value = bpf_map_lookup_elem(&counts, &key);
	if (value)
		*value += 1;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
