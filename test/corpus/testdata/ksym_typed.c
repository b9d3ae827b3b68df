// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Typed symbols of the kernel, and one that no kernel has.
#include "program.h"

struct rq {
	unsigned int nr_running;
} __attribute__((preserve_access_index));

extern const struct rq runqueues __ksym;
extern const int bpf_prog_active __ksym;
extern const struct rq skep_no_such_queue __ksym __weak;

__u64 queue, active;

SEC("raw_tp/sys_enter")
int reads_symbols(void *ctx)
{
	struct rq *rq = bpf_per_cpu_ptr(&runqueues, 0);
	int *count = bpf_this_cpu_ptr(&bpf_prog_active);

	if (rq)
		queue = rq->nr_running;
	active = *count;
	if (&skep_no_such_queue)
		queue = 0;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
