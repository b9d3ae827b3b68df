// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A pointer to an object of the kernel that a map keeps.
#include "program.h"

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

extern struct task_struct *bpf_task_acquire(struct task_struct *p) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

struct value {
	struct task_struct __attribute__((btf_type_tag("kptr"))) *task;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct value);
} kept SEC(".maps");

SEC("tp_btf/task_newtask")
int BPF_PROG(keeps, struct task_struct *task, __u64 flags)
{
	__u32 key = 0;
	struct value *value = bpf_map_lookup_elem(&kept, &key);
	struct task_struct *fresh, *old;

	if (!value)
		return 0;
	fresh = bpf_task_acquire(task);
	if (!fresh)
		return 0;
	old = bpf_kptr_xchg(&value->task, fresh);
	if (old)
		bpf_task_release(old);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
