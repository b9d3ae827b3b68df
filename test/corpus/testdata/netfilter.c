// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A program of netfilter, and one that dissects packets.
#include "program.h"

SEC("netfilter")
int filters(void *ctx)
{
	ran++;
	return 1;
}

SEC("flow_dissector")
int dissects(struct __sk_buff *skb)
{
	ran++;
	return 129; /* BPF_FLOW_DISSECTOR_CONTINUE */
}

char _license[] SEC("license") = "GPL";
