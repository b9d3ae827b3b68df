// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Reports every execve in a ring buffer: who called it and for which file.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* What user space reads; see read/main.go. */
struct event {
	__u32 pid;
	__u32 uid;
	char comm[16];
	char file[128];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

/* Events that found the ring buffer full. */
__u64 lost;

/* The tracepoint's record, as
 * /sys/kernel/tracing/events/syscalls/sys_enter_execve/format lays it out. */
struct execve {
	__u64 common;
	__u64 number;
	const char *filename;
};

/* A function of its own, so that struct event is in the BTF of the program: skep map watch --type event. */
static __attribute__((noinline)) int fill(struct event *event, const char *filename)
{
	event->pid = bpf_get_current_pid_tgid() >> 32;
	event->uid = bpf_get_current_uid_gid();
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	event->file[0] = 0;
	return bpf_probe_read_user_str(event->file, sizeof(event->file), filename);
}

SEC("tracepoint/syscalls/sys_enter_execve")
int snoop(struct execve *ctx)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	fill(event, ctx->filename);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
