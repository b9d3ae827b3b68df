// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Could send a signal to a process: the baseline policy refuses it.
#include "process.h"

/* The signal to send; none is sent at 0. */
const volatile __u32 signal = 0;

SEC("tracepoint/syscalls/sys_enter_getpgid")
int tp_send_signal(void *ctx)
{
	if (signal && only_pid && count_process())
		bpf_send_signal(signal);
	return 0;
}

char _license[] SEC("license") = "GPL";
