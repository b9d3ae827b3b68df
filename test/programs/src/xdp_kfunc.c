// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls kernel functions by name, one of them weakly.
#include "counter.h"

struct xdp_md;

extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym __weak;

__u64 bytes;

SEC("xdp")
int xdp_kfunc(struct xdp_md *ctx)
{
	struct bpf_dynptr packet;

	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return XDP_PASS;
	if (bpf_dynptr_size)
		bytes += bpf_dynptr_size(&packet);
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
