// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops packets by rules that user space writes. The maps have the names and types that the
// Ingress Node Firewall has, but for a ring buffer of events, and all else is of this example.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define MAX_RULES 16
#define MAX_TARGETS 1024

/* What is done by a rule: what XDP calls it. */
enum action { UNDEF, DENY = XDP_DROP, ALLOW = XDP_PASS };

/* A network. IPv4 is ::ffff:0:0/96 of IPv6 (RFC 4291, section 2.5.5.2). */
struct network {
	__u32 prefix_len;
	__u8 ip[16];
};

struct rule {
	__u32 id; /* its place in the statistics; 0 is no rule */
	__u16 first_port, last_port; /* 0 is each port */
	__u8 protocol; /* 0 is each protocol */
	__u8 action;
	__u8 padding[2];
};

/* The rules of a network. The first that fits decides. */
struct rules {
	struct rule rules[MAX_RULES];
};

struct counts {
	__u64 packets, bytes;
};

struct statistics {
	struct counts allow, deny;
};

struct event {
	__u32 if_index, rule;
	__u32 length;
	__u8 action;
	__u8 padding[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_TARGETS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, struct rules);
} ingress_node_firewall_table_map SEC(".maps");

/* By the id of a rule. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct statistics);
} ingress_node_firewall_statistics_map SEC(".maps");

/* Packets that were dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} ingress_node_firewall_events_map SEC(".maps");

/* Who sent the last packet that a rule was for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct network);
} ingress_node_firewall_dbg_map SEC(".maps");

/* Keeps the type of the events in the object's BTF. */
const struct event *unused __attribute__((unused));

struct packet {
	struct network from;
	__u32 length;
	__u16 port;
	__u8 protocol;
};

/* parse reports whether a packet is of IP. Only packets without options and extensions have ports here. */
static __always_inline int parse(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct udphdr *l4;

	p->from.prefix_len = 128;
	p->length = end - data;
	if ((void *)(ip + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		p->from.ip[10] = p->from.ip[11] = 0xff;
		__builtin_memcpy(p->from.ip + 12, &ip->saddr, 4);
		p->protocol = ip->protocol;
		if (ip->ihl != 5)
			return 1;
		l4 = (void *)(ip + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end) {
		__builtin_memcpy(p->from.ip, &ip6->saddr, 16);
		p->protocol = ip6->nexthdr;
		l4 = (void *)(ip6 + 1);
	} else {
		return 0;
	}
	if ((p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) && (void *)(l4 + 1) <= end)
		p->port = bpf_ntohs(l4->dest);
	return 1;
}

static __always_inline int fits(struct rule *rule, struct packet *p)
{
	if (rule->protocol && rule->protocol != p->protocol)
		return 0;
	return !rule->first_port || (rule->first_port <= p->port && p->port <= rule->last_port);
}

static __always_inline void account(struct xdp_md *ctx, struct rule *rule, struct packet *p)
{
	__u32 id = rule->id;
	struct statistics *all = bpf_map_lookup_elem(&ingress_node_firewall_statistics_map, &id);
	struct event event = {
		.if_index = ctx->ingress_ifindex, .rule = id, .length = p->length, .action = rule->action,
	};

	if (all) {
		struct counts *counts = rule->action == DENY ? &all->deny : &all->allow;

		counts->packets += 1;
		counts->bytes += p->length;
	}
	bpf_map_update_elem(&ingress_node_firewall_dbg_map, &id, &p->from, BPF_ANY);
	if (rule->action == DENY)
		bpf_ringbuf_output(&ingress_node_firewall_events_map, &event, sizeof(event), 0);
}

SEC("xdp")
int ingress_node_firewall(struct xdp_md *ctx)
{
	struct packet p = {};
	struct rules *of;

	if (!parse(ctx, &p))
		return XDP_PASS;
	of = bpf_map_lookup_elem(&ingress_node_firewall_table_map, &p.from);
	if (!of)
		return XDP_PASS;
	for (int i = 0; i < MAX_RULES; i++) {
		struct rule *rule = &of->rules[i];

		if (!rule->id || !fits(rule, &p))
			continue;
		account(ctx, rule, &p);
		return rule->action == DENY ? XDP_DROP : XDP_PASS;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
