// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Passes packets where the loader filled in the kernel's version.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern unsigned int LINUX_KERNEL_VERSION __kconfig;

SEC("xdp")
int kconfig_version(struct xdp_md *ctx)
{
	return LINUX_KERNEL_VERSION >> 16 >= 5 ? XDP_PASS : XDP_ABORTED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
