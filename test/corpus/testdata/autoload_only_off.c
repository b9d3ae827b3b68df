// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// All of its programs are off in libbpf unless its user asks.
#include "program.h"

SEC("?tp/syscalls/sys_enter_getpgid")
int one(void *ctx)
{
	ran++;
	return 0;
}

SEC("?raw_tp/sys_enter")
int two(void *ctx)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
