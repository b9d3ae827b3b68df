// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Asks the loader of the kernel: a version behind a typedef, whether it has
// cookies, an option that every kernel for BPF sets, and one that none has.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern __u32 LINUX_KERNEL_VERSION __kconfig;
extern const _Bool LINUX_HAS_BPF_COOKIE __kconfig;
// Tests make these two weak, which bpf2go does not take.
extern _Bool CONFIG_BPF_SYSCALL __kconfig;
extern _Bool CONFIG_OF_NO_KERNEL __kconfig;

SEC("xdp")
int reads_config(struct xdp_md *ctx)
{
	if (LINUX_KERNEL_VERSION < (5 << 16) || !LINUX_HAS_BPF_COOKIE)
		return XDP_ABORTED;
	if (!CONFIG_BPF_SYSCALL || CONFIG_OF_NO_KERNEL)
		return XDP_DROP;
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
