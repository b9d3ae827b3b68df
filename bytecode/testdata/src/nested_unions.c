// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A map whose value is 24 unions in each other, each holding the one before
// twice: a few kilobytes of types, and 33 million members when they are written
// out.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

union u0 {
	__u32 a, b;
};

#define TWICE(outer, inner) union outer { union inner a, b; }
TWICE(u1, u0);
TWICE(u2, u1);
TWICE(u3, u2);
TWICE(u4, u3);
TWICE(u5, u4);
TWICE(u6, u5);
TWICE(u7, u6);
TWICE(u8, u7);
TWICE(u9, u8);
TWICE(u10, u9);
TWICE(u11, u10);
TWICE(u12, u11);
TWICE(u13, u12);
TWICE(u14, u13);
TWICE(u15, u14);
TWICE(u16, u15);
TWICE(u17, u16);
TWICE(u18, u17);
TWICE(u19, u18);
TWICE(u20, u19);
TWICE(u21, u20);
TWICE(u22, u21);
TWICE(u23, u22);
TWICE(u24, u23);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, union u24);
} nested SEC(".maps");

SEC("xdp")
int reads_nested(struct xdp_md *ctx)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&nested, &key) ? XDP_PASS : XDP_ABORTED;
}

char _license[] SEC("license") = "Dual MIT/GPL";
