// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Storage of tasks, sockets and cgroups.
#include "program.h"

#define STORAGE(NAME, TYPE)                     \
	struct {                                \
		__uint(type, TYPE);             \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__type(key, int);               \
		__type(value, __u64);           \
	} NAME SEC(".maps")

STORAGE(of_tasks, BPF_MAP_TYPE_TASK_STORAGE);
STORAGE(of_sockets, BPF_MAP_TYPE_SK_STORAGE);

struct task_struct;

SEC("tp_btf/sys_enter")
int of_task(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 *value = bpf_task_storage_get(&of_tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (value)
		*value += 1;
	ran++;
	return 0;
}

SEC("cgroup/sock_create")
int of_socket(struct bpf_sock *sk)
{
	__u64 *value = bpf_sk_storage_get(&of_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (value)
		*value += 1;
	ran++;
	return 1;
}

char _license[] SEC("license") = "GPL";
