// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// An iterator over tasks that prints, sleepable.
#include "program.h"

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

SEC("iter.s/task")
int prints_tasks(struct bpf_iter__task *ctx)
{
	static const char format[] = "%d\n";
	struct task_struct *task = ctx->task;
	__u64 argument;

	if (!task)
		return 0;
	argument = task->pid;
	bpf_seq_printf(ctx->meta->seq, format, sizeof(format), &argument, sizeof(argument));
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
