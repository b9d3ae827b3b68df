// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reports every execve in a ring buffer.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct event {
	__u32 pid;
	char comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

/* Keeps the type in the object's BTF for readers. */
const struct event *unused __attribute__((unused));

SEC("tracepoint/syscalls/sys_enter_execve")
int tp_exec_events(void *ctx)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return 0;
	event->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	bpf_ringbuf_submit(event, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
