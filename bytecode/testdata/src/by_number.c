// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Code that names a map by its number in the loader's table of open files.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int takes_fd_seven(struct xdp_md *ctx)
{
	asm volatile(".byte 0x18, 0x11, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0");
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
