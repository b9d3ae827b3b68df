// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops packets of sources that another program counted too often.
#include "sources.h"

/* Packets that a source may send while it is counted; 0 drops nothing. A
 * definition sets it. */
const volatile __u64 most = 0;

SEC("tcx/ingress")
int limit_source(struct __sk_buff *skb)
{
	__u32 from = source(skb);
	__u64 *n;

	if (!from || !most)
		return TCX_NEXT;
	n = bpf_map_lookup_elem(&sources, &from);
	return n && *n > most ? TC_ACT_SHOT : TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
