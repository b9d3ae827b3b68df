// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A ring buffer: reserved and submitted, and written at once.
#include "program.h"

struct event {
	__u32 pid;
	char name[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

SEC("tracepoint/syscalls/sys_enter_getpgid")
int submits(void *ctx)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0), copy = {};

	if (event) {
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->name, sizeof(event->name));
		bpf_ringbuf_submit(event, 0);
	}
	bpf_ringbuf_output(&events, &copy, sizeof(copy), 0);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
