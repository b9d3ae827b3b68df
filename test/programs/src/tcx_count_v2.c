// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// tcx_count's second version: the same map and one variable more.
#include <linux/pkt_cls.h>
#include "counter.h"

#define TCX_NEXT -1

__u64 bytes;

static __always_inline int measure(struct __sk_buff *skb)
{
	__sync_fetch_and_add(&bytes, skb->len);
	count();
	return TCX_NEXT;
}

SEC("tcx/ingress")
int count_ingress(struct __sk_buff *skb)
{
	return measure(skb);
}

SEC("tcx/egress")
int count_egress(struct __sk_buff *skb)
{
	return measure(skb);
}

char _license[] SEC("license") = "Dual BSD/GPL";
