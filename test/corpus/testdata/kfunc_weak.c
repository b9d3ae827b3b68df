// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Functions of the kernel: two that 6.2 brought, and a weak one that no kernel has.
#include "program.h"

extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void bpf_rcu_read_unlock(void) __ksym __weak;
extern int skep_no_such_function(int value) __ksym __weak;

SEC("tp_btf/sys_enter")
int calls_functions(void *ctx)
{
	if (skep_no_such_function)
		ran += skep_no_such_function(1);
	if (bpf_rcu_read_lock && bpf_rcu_read_unlock) {
		bpf_rcu_read_lock();
		bpf_rcu_read_unlock();
	}
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
