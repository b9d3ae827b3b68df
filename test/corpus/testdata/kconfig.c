// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Options of the kernel: of every type, strong and weak, there and not there.
#include "program.h"

extern int LINUX_KERNEL_VERSION __kconfig;
extern bool LINUX_HAS_SYSCALL_WRAPPER __kconfig;
extern bool CONFIG_BPF_SYSCALL __kconfig;
extern enum libbpf_tristate CONFIG_NET __kconfig;
extern int CONFIG_HZ __kconfig;
extern char CONFIG_DEFAULT_HOSTNAME[16] __kconfig;
extern bool CONFIG_SKEP_NO_SUCH __kconfig __weak;
extern enum libbpf_tristate CONFIG_SKEP_NO_SUCH_EITHER __kconfig __weak;

__u64 version, hz, name;

SEC("raw_tp/sys_enter")
int reads_options(void *ctx)
{
	version = LINUX_KERNEL_VERSION;
	hz = CONFIG_HZ;
	name = CONFIG_DEFAULT_HOSTNAME[0];
	if (CONFIG_BPF_SYSCALL && CONFIG_NET == TRI_YES && !CONFIG_SKEP_NO_SUCH && CONFIG_SKEP_NO_SUCH_EITHER == TRI_NO)
		ran += 1 + LINUX_HAS_SYSCALL_WRAPPER;
	return 0;
}

char _license[] SEC("license") = "GPL";
