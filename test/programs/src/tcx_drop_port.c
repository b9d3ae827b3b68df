// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops incoming TCP and UDP packets to one port and counts what it dropped.
#include <linux/pkt_cls.h>
#include "counter.h"
#include "ports.h"

#define TCX_NEXT -1

/* The destination port to drop, in host order. */
const volatile __u16 port = 9;

SEC("tcx/ingress")
int drop_port(struct __sk_buff *skb)
{
	__u16 to = destination_port((void *)(long)skb->data, (void *)(long)skb->data_end);

	if (!to || to != port)
		return TCX_NEXT;
	count();
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
