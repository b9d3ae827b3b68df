// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has a program for an interface, and two that the kernel runs for what is
// redirected through entries of a device map and a CPU map.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int at_interface(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp/devmap")
int at_device(struct xdp_md *ctx)
{
	return ctx->egress_ifindex ? XDP_PASS : XDP_DROP;
}

SEC("xdp.frags/cpumap")
int at_cpu(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
