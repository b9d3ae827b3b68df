// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Programs of devices: by every section for them, with maps that redirect.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} devices SEC(".maps");

SEC("xdp.frags")
int receives(struct xdp_md *ctx)
{
	ran++;
	return XDP_PASS;
}

SEC("xdp/devmap")
int forwards(struct xdp_md *ctx)
{
	return bpf_redirect_map(&devices, 0, XDP_PASS);
}

SEC("tc/ingress")
int enters(struct __sk_buff *skb)
{
	ran++;
	return -1;
}

SEC("tcx/egress")
int leaves(struct __sk_buff *skb)
{
	ran++;
	return -1;
}

char _license[] SEC("license") = "GPL";
