// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Programs for a definition that leaves to the node which of them it runs.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

__u32 last;

#define PROGRAM(NAME, SECTION) \
	SEC(SECTION)           \
	int NAME(void *ctx)    \
	{                      \
		last++;        \
		return 0;      \
	}

PROGRAM(by_fentry, "fentry/security_task_getpgid")
PROGRAM(by_fexit, "fexit/security_task_getpgid")
PROGRAM(by_kprobe, "kprobe/security_task_getpgid")
PROGRAM(by_tracepoint, "tracepoint/syscalls/sys_enter_getpgid")
PROGRAM(by_raw_tp, "raw_tp/sys_enter")
PROGRAM(by_tcx, "tcx/ingress")

/* No kernel loads it: it reads what no context has. */
SEC("raw_tp/sys_enter")
int rejected(struct bpf_raw_tracepoint_args *ctx)
{
	return *(int *)((char *)ctx + 4096);
}

int called(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} calls SEC(".maps") = {
	.values = { [1] = (void *)&called },
};

/* It runs by a tail call alone, and is part of what the node may leave out. */
__u32 tail;

SEC("raw_tp")
int called(void *ctx)
{
	tail++;
	return 0;
}

SEC("raw_tp/sys_enter")
int calling(void *ctx)
{
	bpf_tail_call(ctx, &calls, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
