// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Adds up packets over IPv4 by their flow, and lets all of them pass. The maps have the
// names and types that NetObserv's agent has, and all else is of this example.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* What TCX calls "let the next program decide". */
#define TCX_NEXT -1
#define DNS_PORT 53

enum direction { INGRESS, EGRESS };
enum action { REJECT, ACCEPT };
enum counter { FLOW_NOT_ADDED, FLOW_NOT_REPORTED, FILTER_ACCEPT, FILTER_REJECT, FILTER_NO_MATCH, MAX_COUNTERS };

struct flow_id {
	__u8 src_ip[4], dst_ip[4];
	__be16 src_port, dst_port;
	__u8 protocol, direction;
	__u8 padding[2];
};

struct flow_metrics {
	__u64 bytes, first_seen, last_seen; /* in nanoseconds since boot */
	__u32 packets, if_index;
};

struct dns_metrics {
	__u64 messages;
	__be16 id, flags; /* of the newest message */
	__u32 padding;
};

struct flow_record {
	struct flow_id id;
	struct flow_metrics metrics;
};

struct filter_key {
	__u32 prefix_len;
	__u8 ip[4];
};

struct filter_value {
	enum action action;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct flow_id);
	__type(value, struct flow_metrics);
} aggregated_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1 << 12);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_id);
	__type(value, struct dns_metrics);
} aggregated_flows_dns SEC(".maps");

/* The first packet of each flow. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} direct_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_COUNTERS);
	__type(key, __u32);
	__type(value, __u32);
} global_counters SEC(".maps");

/* Networks whose packets count, or do not. The longest prefix of the sender decides. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct filter_key);
	__type(value, struct filter_value);
} filter_map SEC(".maps");

/* Keeps the type of the records in the object's BTF. */
const struct flow_record *unused __attribute__((unused));

static __always_inline void add(__u32 counter)
{
	__u32 *n = bpf_map_lookup_elem(&global_counters, &counter);

	if (n)
		*n += 1;
}

static __always_inline int accepted(struct flow_id *id)
{
	struct filter_key from = { .prefix_len = 32 };
	struct filter_value *rule;

	__builtin_memcpy(from.ip, id->src_ip, sizeof(from.ip));
	rule = bpf_map_lookup_elem(&filter_map, &from);
	if (!rule) {
		add(FILTER_NO_MATCH);
		return 0;
	}
	add(rule->action == ACCEPT ? FILTER_ACCEPT : FILTER_REJECT);
	return rule->action == ACCEPT;
}

static __always_inline void add_flow(struct __sk_buff *skb, struct flow_id *id)
{
	struct flow_metrics *known = bpf_map_lookup_elem(&aggregated_flows, id);
	struct flow_record new = {};

	if (known) {
		__sync_fetch_and_add(&known->packets, 1);
		__sync_fetch_and_add(&known->bytes, skb->len);
		known->last_seen = bpf_ktime_get_ns();
		return;
	}
	new.id = *id;
	new.metrics.bytes = skb->len;
	new.metrics.packets = 1;
	new.metrics.first_seen = new.metrics.last_seen = bpf_ktime_get_ns();
	new.metrics.if_index = skb->ifindex;
	if (bpf_map_update_elem(&aggregated_flows, id, &new.metrics, BPF_NOEXIST))
		add(FLOW_NOT_ADDED);
	if (bpf_ringbuf_output(&direct_flows, &new, sizeof(new), 0))
		add(FLOW_NOT_REPORTED);
}

static __always_inline void add_dns(struct flow_id *id, __be16 *header)
{
	struct dns_metrics *known = bpf_map_lookup_elem(&aggregated_flows_dns, id), new = { .messages = 1 };

	if (!known) {
		new.id = header[0];
		new.flags = header[1];
		bpf_map_update_elem(&aggregated_flows_dns, id, &new, BPF_ANY);
		return;
	}
	known->messages += 1;
	known->id = header[0];
	known->flags = header[1];
}

static __always_inline int observe(struct __sk_buff *skb, enum direction direction)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *l4 = (void *)(ip + 1);
	struct flow_id id = { .direction = direction };

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return TCX_NEXT;
	__builtin_memcpy(id.src_ip, &ip->saddr, sizeof(id.src_ip));
	__builtin_memcpy(id.dst_ip, &ip->daddr, sizeof(id.dst_ip));
	id.protocol = ip->protocol;
	/* TCP has its ports at the same place. Packets with options of IP have none here. */
	if ((id.protocol == IPPROTO_UDP || id.protocol == IPPROTO_TCP) && ip->ihl == 5 && (void *)(l4 + 1) <= end) {
		id.src_port = l4->source;
		id.dst_port = l4->dest;
	}
	if (!accepted(&id))
		return TCX_NEXT;
	add_flow(skb, &id);
	if (id.protocol == IPPROTO_UDP && (id.dst_port == bpf_htons(DNS_PORT) || id.src_port == bpf_htons(DNS_PORT)) && (void *)(l4 + 1) + 4 <= end)
		add_dns(&id, (void *)(l4 + 1));
	return TCX_NEXT;
}

SEC("tcx/ingress")
int flows_in(struct __sk_buff *skb)
{
	return observe(skb, INGRESS);
}

SEC("tcx/egress")
int flows_out(struct __sk_buff *skb)
{
	return observe(skb, EGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
