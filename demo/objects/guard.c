// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Drops UDP packets to one port: the second program of the XDP chain.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

const volatile __u16 port = 0;

__u64 dropped;

SEC("xdp")
int guard_port(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct udphdr *udp = (void *)ip + sizeof(*ip);

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	if (ip->ihl != 5 || ip->protocol != IPPROTO_UDP || udp->dest != bpf_htons(port))
		return XDP_PASS;
	__sync_fetch_and_add(&dropped, 1);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
