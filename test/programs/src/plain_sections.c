// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sections that name no hook: one that nobody knows, and the two for traffic
// control that libbpf knew before it had hooks.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("prog")
int unspecified(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("classifier")
int classifies(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

SEC("action")
int acts(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
