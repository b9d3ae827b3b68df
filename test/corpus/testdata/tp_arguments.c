// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A tracepoint's own arguments, by the short name of the section.
#include "program.h"

struct arguments {
	__u64 common;
	long number;
	long pid;
};

__u64 last;

SEC("tp/syscalls/sys_enter_getpgid")
int reads_arguments(struct arguments *ctx)
{
	last = ctx->pid;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
