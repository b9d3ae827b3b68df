// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// An array of programs that the object fills in itself.
#include "program.h"

int next(void *ctx);
int last(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__array(values, int (void *));
} jumps SEC(".maps") = {
	.values = { [0] = (void *)&next, [2] = (void *)&last },
};

SEC("tp/syscalls/sys_enter_getpgid")
int first(void *ctx)
{
	bpf_tail_call(ctx, &jumps, 0);
	return 0;
}

SEC("tp/skep/next")
int next(void *ctx)
{
	bpf_tail_call(ctx, &jumps, 2);
	return 0;
}

SEC("tp/skep/last")
int last(void *ctx)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
