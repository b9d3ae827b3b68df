// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// An arena whose address its loader chooses, as libbpf does.
#include "program.h"

#define BPF_MAP_TYPE_ARENA 33
#define __arena __attribute__((address_space(1)))

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 10);
} arena SEC(".maps");

int __arena *page;

SEC("tp_btf/sys_enter")
int reads_arena(void *ctx)
{
	/* Names the map, so that the verifier knows whose addresses these are. */
	asm volatile("" ::"r"(&arena));
	if (page)
		ran += *page;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
