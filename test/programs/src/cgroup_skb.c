// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts the packets of a cgroup both ways.
#include "counter.h"

SEC("cgroup_skb/ingress")
int cgroup_ingress(struct __sk_buff *skb)
{
	count();
	return 1;
}

SEC("cgroup_skb/egress")
int cgroup_egress(struct __sk_buff *skb)
{
	count();
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
