// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has a map, a function outside any section of programs and a licence, and no
// program.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

int library(int n)
{
	return n + bpf_get_prandom_u32();
}

char _license[] SEC("license") = "Dual MIT/GPL";
