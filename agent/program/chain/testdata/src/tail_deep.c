// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Makes a tail call out of a function whose caller uses 240 bytes of stack: 256
// are refused.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} jumps SEC(".maps");

__u64 sum;

static __noinline int jump(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &jumps, 0);
	return XDP_PASS;
}

SEC("xdp")
int tail_deep(struct xdp_md *ctx)
{
	volatile __u64 words[30];
	__u64 total = 0;

	for (int i = 0; i < 30; i++)
		words[i] = i;
	for (int i = 0; i < 30; i++)
		total += words[i];
	sum = total;
	return jump(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
