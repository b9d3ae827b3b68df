// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Calls whose target has no name: by register, by a helper number that the
// kernel has not, by a negative one, and the one that CO-RE leaves behind.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int by_register(struct xdp_md *ctx)
{
	asm volatile(".byte 0x8d, 0, 0, 0, 1, 0, 0, 0");
	return XDP_PASS;
}

SEC("xdp")
int by_unknown_numbers(struct xdp_md *ctx)
{
	asm volatile(".byte 0x85, 0, 0, 0, 0xd4, 0, 0, 0\n" /* 212 */
		     ".byte 0x85, 0, 0, 0, 0, 0, 0, 0\n"
		     ".byte 0x85, 0, 0, 0, 0xf9, 0xff, 0xff, 0xff");
	return XDP_PASS;
}

SEC("xdp")
int by_odd_mode(struct xdp_md *ctx)
{
	asm volatile(".byte 0x85, 0x50, 0, 0, 1, 0, 0, 0");
	return XDP_PASS;
}

SEC("xdp")
int poisoned(struct xdp_md *ctx)
{
	asm volatile(".byte 0x85, 0, 0, 0, 0x10, 0x23, 0xad, 0x0b\n"
		     ".byte 0x85, 0, 0, 0, 0x11, 0x23, 0xad, 0x0b");
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
