// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Prints one line for each task when its pinned iterator is read.
#include "counter.h"
#include <bpf/bpf_tracing.h>

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

SEC("iter/task")
int iter_task(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task)
		return 0;
	count();
	BPF_SEQ_PRINTF(ctx->meta->seq, "%d %d\n", task->tgid, task->pid);
	return 0;
}

char _license[] SEC("license") = "GPL";
