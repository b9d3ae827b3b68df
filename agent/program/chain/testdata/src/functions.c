// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has sixteen small functions, so that sixteen members reach the kernel's 256.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

volatile __u32 seen;

#define STEP(NAME)                          \
	static __noinline int NAME(int n)   \
	{                                   \
		seen += n;                  \
		return seen;                \
	}

STEP(a) STEP(b) STEP(c) STEP(d) STEP(e) STEP(f) STEP(g) STEP(h)
STEP(i) STEP(j) STEP(k) STEP(l) STEP(m) STEP(n_) STEP(o)

SEC("xdp")
int functions(struct xdp_md *ctx)
{
	a(1); b(2); c(3); d(4); e(5); f(6); g(7); h(8);
	i(9); j(10); k(11); l(12); m(13); n_(14); o(15);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
