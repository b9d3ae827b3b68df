// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A __kconfig variable, and beside it a map by number, which the parser turns into
// the same instruction.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern unsigned int CONFIG_HZ __kconfig;

SEC("xdp")
int takes_fd_zero(struct xdp_md *ctx)
{
	asm volatile(".byte 0x18, 0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0");
	return CONFIG_HZ;
}

char _license[] SEC("license") = "GPL";
