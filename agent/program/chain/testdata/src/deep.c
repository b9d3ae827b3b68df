// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Nests eight calls, which is as deep as the kernel goes.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

volatile __u32 seen;

#define NEST(NAME, NEXT)                    \
	static __noinline int NAME(int n)   \
	{                                   \
		seen += n;                  \
		return NEXT(n + 1) + seen;  \
	}

static __noinline int seven(int n)
{
	seen += n;
	return seen;
}

NEST(six, seven)
NEST(five, six)
NEST(four, five)
NEST(three, four)
NEST(two, three)
NEST(one, two)

SEC("xdp")
int deep(struct xdp_md *ctx)
{
	return one(1) ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
