// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts socket look-ups and refuses those of one local port.
#include "counter.h"

/* The local port refused, in host order; 0 refuses none. */
const volatile __u32 deny_port = 0;

SEC("sk_lookup")
int sk_lookup_count(struct bpf_sk_lookup *ctx)
{
	count();
	if (deny_port && ctx->local_port == deny_port)
		return SK_DROP;
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
