// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A perf buffer, whose number of entries its loader sets, and stack traces.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(int));
	__uint(value_size, sizeof(int));
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 127 * sizeof(__u64));
	__uint(max_entries, 128);
} stacks SEC(".maps");

SEC("tp/syscalls/sys_enter_getpgid")
int outputs(void *ctx)
{
	__u64 id = bpf_get_stackid(ctx, &stacks, 0);

	bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &id, sizeof(id));
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
