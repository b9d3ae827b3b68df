// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Addresses of functions of the kernel, and a weak one that no kernel has.
#include "program.h"

extern const void schedule __ksym;
extern void vfs_read __ksym;
extern const void skep_no_such_symbol __ksym __weak;

__u64 addresses[3];

SEC("raw_tp/sys_enter")
int takes_addresses(void *ctx)
{
	addresses[0] = (__u64)&schedule;
	addresses[1] = (__u64)&vfs_read;
	addresses[2] = (__u64)&skep_no_such_symbol;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
