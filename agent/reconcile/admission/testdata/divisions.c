// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// An XDP program of 1,100 divisions by a register. The kernel makes ten instructions of each, one after the other.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int divisions(struct xdp_md *ctx)
{
	asm volatile("r1 = 2;"
		     ".rept 1100;"
		     "r1 %%= r1;"
		     ".endr"
		     ::: "r1");
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
