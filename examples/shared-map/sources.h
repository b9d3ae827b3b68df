/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The map that both programs declare, and what they share of packets. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* What TCX calls "let the next program decide". */
#define TCX_NEXT -1

/* Packets by the IPv4 address that sent them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} sources SEC(".maps");

/* The sender of a packet; 0 of one that is not IPv4. */
static __always_inline __u32 source(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)skb->data_end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	return ip->saddr;
}
