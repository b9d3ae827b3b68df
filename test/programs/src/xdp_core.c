// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reads the device's name through CO-RE relocations: needs the kernel's BTF.
#include "counter.h"
#include <bpf/bpf_core_read.h>

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

struct xdp_rxq_info {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct xdp_buff {
	struct xdp_rxq_info *rxq;
} __attribute__((preserve_access_index));

__u64 field_size;

SEC("xdp")
int xdp_core(struct xdp_md *ctx)
{
	struct xdp_buff *buff = 0;

	field_size = bpf_core_field_size(buff->rxq);
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
