// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A ring that processes write to, and pointers with a size that is known at run time.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 4096);
} commands SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

static long handles(struct bpf_dynptr *command, void *ctx)
{
	ran += !!bpf_dynptr_data(command, 0, 8);
	return 0;
}

SEC("tp/syscalls/sys_enter_getpgid")
int drains(void *ctx)
{
	struct bpf_dynptr event;
	__u64 value = 1;

	bpf_user_ringbuf_drain(&commands, handles, 0, 0);
	bpf_ringbuf_reserve_dynptr(&events, 8, 0, &event);
	bpf_dynptr_write(&event, 0, &value, sizeof(value), 0);
	bpf_ringbuf_submit_dynptr(&event, 0);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
