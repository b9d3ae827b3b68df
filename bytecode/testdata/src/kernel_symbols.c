// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Everything of the kernel's that a program may name: a kfunc called, a kfunc
// only asked for, a variable, and two Kconfig options.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct task_struct;

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void jiffies __ksym;
extern unsigned int CONFIG_HZ __kconfig;
extern unsigned int LINUX_KERNEL_VERSION __kconfig;

__u64 where;

SEC("tp_btf/sched_switch")
int names_symbols(void *ctx)
{
	struct task_struct *task = bpf_task_from_pid(1);

	if (task)
		bpf_task_release(task);
	if (bpf_rcu_read_lock)
		where = (__u64)&jiffies;
	return CONFIG_HZ + LINUX_KERNEL_VERSION;
}

char _license[] SEC("license") = "Proprietary";
