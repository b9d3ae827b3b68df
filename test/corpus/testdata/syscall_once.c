// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A program that runs once and fills a map, and one that reads it.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} squares SEC(".maps");

/* Not static: a loader that runs it has the verifier walk it with its arguments. */
__attribute__((noinline)) int put(__u32 n)
{
	__u64 square = (__u64)n * n;

	return bpf_map_update_elem(&squares, &n, &square, BPF_ANY);
}

SEC("syscall")
int fills(void *ctx)
{
	for (__u32 i = 0; i < 16; i++)
		if (put(i))
			return -1;
	ran++;
	return 0;
}

SEC("raw_tp/sys_enter")
int reads(void *ctx)
{
	__u32 three = 3;
	__u64 *square = bpf_map_lookup_elem(&squares, &three);

	if (square && *square == 9)
		ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
