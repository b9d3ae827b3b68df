// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One program for entry and return.
#include "program.h"

extern bool bpf_session_is_return(void) __ksym __weak;

SEC("kprobe.session/security_task_getp*")
int both(struct pt_regs *ctx)
{
	if (bpf_session_is_return)
		ran += bpf_session_is_return();
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
