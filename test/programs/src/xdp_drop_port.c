// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops TCP and UDP packets to one port and counts what it dropped.
#include "counter.h"
#include "ports.h"

/* The destination port to drop, in host order. */
const volatile __u16 port = 9;

SEC("xdp")
int drop_port(struct xdp_md *ctx)
{
	__u16 to = destination_port((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (!to || to != port)
		return XDP_PASS;
	count();
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
