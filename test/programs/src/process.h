/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Limits a tracing program to one process, so that a test counts its own
 * events and nobody else's. */
#pragma once

#include "counter.h"

/* The thread group counted; 0 counts every one. */
const volatile __u32 only_pid = 0;

static __always_inline int count_process(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;

	if (only_pid && pid != only_pid)
		return 0;
	count();
	return 1;
}
