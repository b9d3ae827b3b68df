// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Relocations of every kind, with flavours of a type that changed.
#include "program.h"

struct task_struct {
	int pid;
	unsigned int flags;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
} __attribute__((preserve_access_index));

/* Before 5.14 the state had another name. */
struct task_struct___before {
	long state;
} __attribute__((preserve_access_index));

struct task_struct___now {
	unsigned int __state;
} __attribute__((preserve_access_index));

struct skep_no_such_type {
	int field;
} __attribute__((preserve_access_index));

enum bpf_map_type___any {
	BPF_MAP_TYPE_HASH___any = 77,
	SKEP_NO_SUCH_VALUE = 78,
};

struct in_addr___one {
	__u32 s_addr;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u8 repair : 1;
} __attribute__((preserve_access_index));

__u64 state, parent, sizes, value, id;

SEC("raw_tp/sys_enter")
int relocates(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	parent = BPF_CORE_READ(task, real_parent, group_leader, pid);
	if (bpf_core_field_exists(((struct task_struct___now *)0)->__state))
		state = BPF_CORE_READ((struct task_struct___now *)task, __state);
	else
		state = BPF_CORE_READ((struct task_struct___before *)task, state);
	if (bpf_core_type_exists(struct skep_no_such_type))
		state = 0;
	if (bpf_core_enum_value_exists(enum bpf_map_type___any, SKEP_NO_SUCH_VALUE))
		state = 0;
	value = bpf_core_enum_value(enum bpf_map_type___any, BPF_MAP_TYPE_HASH___any);
	sizes = bpf_core_type_size(struct task_struct) + bpf_core_field_size(task->pid);
	id = bpf_core_type_id_kernel(struct task_struct);
	if (bpf_core_type_matches(struct in_addr___one))
		sizes++;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
