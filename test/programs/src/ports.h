/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Reads the destination port of a TCP or UDP packet over IPv4. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* destination_port returns the port in host order, or 0 where there is none.
 * TCP and UDP have it at the same place. */
static __always_inline __u16 destination_port(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *l4;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
		return 0;
	l4 = (void *)ip + ip->ihl * 4;
	if ((void *)(l4 + 1) > end)
		return 0;
	return bpf_ntohs(l4->dest);
}
