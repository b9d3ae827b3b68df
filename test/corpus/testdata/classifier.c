// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sections that name no hook.
#include "program.h"

SEC("classifier")
int classifies(struct __sk_buff *skb)
{
	ran++;
	return -1;
}

SEC("tc")
int of_tc(struct __sk_buff *skb)
{
	ran++;
	return -1;
}

char _license[] SEC("license") = "GPL";
