// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Static and global functions, shared by two programs.
#include "program.h"

static __noinline int of_file(int n)
{
	ran += n;
	return n + 1;
}

__noinline int of_object(int n)
{
	return of_file(n) + 1;
}

__hidden __noinline int hidden(int n)
{
	return of_object(n) * 2;
}

SEC("tp/syscalls/sys_enter_getpgid")
int one(void *ctx)
{
	return hidden(1) & 0;
}

SEC("raw_tp/sys_exit")
int two(void *ctx)
{
	return of_object(2) & 0;
}

char _license[] SEC("license") = "GPL";
