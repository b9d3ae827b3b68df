// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Programs for an LSM hook of a cgroup, with what a loader has to put in.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* The address family of sockets that are refused, and the error, as in -errno. */
const volatile __s32 refused = 0;
const volatile __s32 error = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __s32);
	__type(value, __u64);
} calls SEC(".maps");

/* The current task's process as its structure has it, by CO-RE. */
__u32 process;

struct task_struct {
	int tgid;
} __attribute__((preserve_access_index));

extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

static __attribute__((noinline)) void count(__s32 family)
{
	__u64 one = 1, *n = bpf_map_lookup_elem(&calls, &family);

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&calls, &family, &one, BPF_ANY);
}

SEC("lsm_cgroup/socket_create")
int BPF_PROG(refuses, int family, int type, int protocol, int kern)
{
	process = bpf_get_current_task_btf()->tgid;
	count(family);
	if (family != refused)
		return 1;
	if (error)
		bpf_set_retval(error);
	return 0;
}

SEC("lsm_cgroup/socket_create")
int BPF_PROG(calls_kernel, int family)
{
	bpf_rcu_read_lock();
	bpf_rcu_read_unlock();
	count(family);
	return 1;
}

extern _Bool CONFIG_BPF_SYSCALL __kconfig;

SEC("lsm_cgroup/socket_create")
int reads_config(void *ctx)
{
	return CONFIG_BPF_SYSCALL;
}

extern void bpf_prog_fops __ksym;

SEC("lsm_cgroup/socket_create")
int reads_address(void *ctx)
{
	return (__u64)&bpf_prog_fops >> 63;
}

extern void bpf_no_such_function(void) __ksym;

SEC("lsm_cgroup/socket_create")
int calls_nothing(void *ctx)
{
	bpf_no_such_function();
	return 1;
}

SEC("lsm_cgroup/no_such_hook")
int on_no_hook(void *ctx)
{
	return 1;
}

/* A hook of a cgroup takes 0 and 1. */
SEC("lsm_cgroup/socket_create")
int returns_more(void *ctx)
{
	return 2;
}

char _license[] SEC("license") = "Dual BSD/GPL";
