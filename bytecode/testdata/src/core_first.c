// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Two programs, of which only the first has CO-RE relocations.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

SEC("raw_tp/sched_switch")
int a_relocated(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[1];

	return BPF_CORE_READ(task, pid);
}

SEC("raw_tp/sched_switch")
int z_plain(void *ctx)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
