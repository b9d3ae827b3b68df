// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts packets both ways and leaves the decision to who comes next.
#include <linux/pkt_cls.h>
#include "counter.h"

#define TCX_NEXT -1

SEC("tcx/ingress")
int count_ingress(struct __sk_buff *skb)
{
	count();
	return TCX_NEXT;
}

SEC("tcx/egress")
int count_egress(struct __sk_buff *skb)
{
	count();
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
