// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reads a field that no kernel has, on a path that is always taken: CO-RE
// poisons the access and the verifier refuses it.
#include "process.h"
#include <bpf/bpf_core_read.h>

struct task_struct {
	int skep_has_no_such_field;
} __attribute__((preserve_access_index));

__u64 value;

SEC("tracepoint/syscalls/sys_enter_getpgid")
int tp_poisoned(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	int field = 0;

	bpf_core_read(&field, sizeof(field), &task->skep_has_no_such_field);
	value = field;
	count_process();
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
