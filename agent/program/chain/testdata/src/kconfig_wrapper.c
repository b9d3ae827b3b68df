// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reads two variables of the loader, so that the second has an offset, once in
// the program and once in a function of it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern unsigned int LINUX_KERNEL_VERSION __kconfig;
extern _Bool LINUX_HAS_SYSCALL_WRAPPER __kconfig;

static __noinline int is_bool(void)
{
	__u8 value = *(volatile __u8 *)&LINUX_HAS_SYSCALL_WRAPPER;

	return value <= 1;
}

SEC("xdp")
int kconfig_wrapper(struct xdp_md *ctx)
{
	if (!is_bool())
		return XDP_ABORTED;
	return LINUX_KERNEL_VERSION >> 16 >= 5 ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
