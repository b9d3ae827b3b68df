// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops incoming TCP and UDP packets over IPv4 to one port.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* What TCX calls "let the next program decide". */
#define TCX_NEXT -1

/* The destination port to drop, in host order. A definition sets it; 0 drops
 * nothing. */
const volatile __u16 port = 0;

/* Packets dropped since the map was made. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

static __always_inline __u16 destination_port(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *l4;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return 0;
	/* TCP and UDP have the port at the same place. */
	if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
		return 0;
	l4 = (void *)ip + ip->ihl * 4;
	if ((void *)(l4 + 1) > end)
		return 0;
	return bpf_ntohs(l4->dest);
}

SEC("tcx/ingress")
int drop_port(struct __sk_buff *skb)
{
	__u16 to = destination_port((void *)(long)skb->data, (void *)(long)skb->data_end);
	__u32 key = 0;
	__u64 *value;

	if (!to || to != port)
		return TCX_NEXT;
	value = bpf_map_lookup_elem(&dropped, &key);
	if (value)
		*value += 1;
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
