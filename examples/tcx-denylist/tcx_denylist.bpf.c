// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops incoming IPv4 packets from the networks of a map.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* What TCX calls "let the next program decide". */
#define TCX_NEXT -1

enum action { DROP, COUNT };

/* A network: the first prefixlen bits of the address, in network byte order. */
struct network {
	__u32 prefixlen;
	__u8 address[4];
};

struct rule {
	enum action action;
	__u64 packets;
};

/* The networks, of which the longest prefix counts. A definition lists them. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, struct rule);
} networks SEC(".maps");

SEC("tcx/ingress")
int drop_networks(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct network from = { .prefixlen = 32 };
	struct rule *rule;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return TCX_NEXT;
	__builtin_memcpy(from.address, &ip->saddr, sizeof(from.address));
	rule = bpf_map_lookup_elem(&networks, &from);
	if (!rule)
		return TCX_NEXT;
	__sync_fetch_and_add(&rule->packets, 1);
	return rule->action == DROP ? TC_ACT_SHOT : TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
