// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts incoming packets by their source, and lets all of them pass.
#include "sources.h"

SEC("tcx/ingress")
int count_source(struct __sk_buff *skb)
{
	__u32 from = source(skb);
	__u64 one = 1, *n;

	if (!from)
		return TCX_NEXT;
	n = bpf_map_lookup_elem(&sources, &from);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&sources, &from, &one, BPF_NOEXIST);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
