// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts, on TCX, the packets that the XDP chain let through.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define TCX_NEXT -1

__u64 arrived;

SEC("tcx/ingress")
int count_arrivals(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&arrived, 1);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
